"use strict";
const rows = [...document.querySelectorAll("#rows tbody tr")];
const [text, outcome, suite] = ["text", "outcome", "suite"].map((id) => document.getElementById(id));

function more(row) {
  const next = row.nextElementSibling;
  return next && next.classList.contains("more") ? next : null;
}

function filter() {
  const wanted = text.value.trim().toLowerCase();
  let shown = 0;
  for (const row of rows) {
    const fits =
      row.firstElementChild.textContent.toLowerCase().includes(wanted) &&
      (!outcome.value || row.dataset.o === outcome.value) &&
      (!suite || !suite.value || row.dataset.s === suite.value);
    row.hidden = !fits;
    shown += fits;
    const details = more(row);
    if (details) details.hidden = !fits || !row.querySelector("[aria-expanded=true]");
  }
  document.getElementById("count").textContent = `${shown} of ${rows.length} rows`;
}

// The details of a row are parsed and laid out when they are opened, so that thousands of rows open at once.
function toggle(button) {
  const row = button.closest("tr");
  const open = button.getAttribute("aria-expanded") !== "true";
  button.setAttribute("aria-expanded", String(open));
  let details = more(row);
  if (!details) {
    details = document.createElement("tr");
    details.className = "more";
    const cell = details.insertCell();
    cell.colSpan = row.cells.length;
    cell.append(row.querySelector("template").content.cloneNode(true));
    row.after(details);
  }
  details.hidden = !open;
}

async function copy(button) {
  const code = button.previousElementSibling;
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.matches(".copy")) copy(button);
  else if (button.hasAttribute("aria-expanded")) toggle(button);
});

if (text) {
  for (const field of [text, outcome, suite]) if (field) field.addEventListener("input", filter);
  text.form.addEventListener("submit", (event) => event.preventDefault());
  filter(); // a browser keeps the fields when it loads the page again
}

let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const one of opened) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
});
