"""The generated parts of ``README.md`` and ``docs/``, and the hooks of the site that is built from them.

``python -m bench_tests.pages`` writes all of them anew, from the code and from the stored baselines.
"""
