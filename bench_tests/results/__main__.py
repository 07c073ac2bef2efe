"""``python -m bench_tests.results h200`` prints the results page."""

import sys

from bench_tests.results.page import main

main(sys.argv[1])
