"""`python -m yesterday make NAME ...`: add a run. The README says when."""

import argparse

from yesterday.make import RUNS, make

parser = argparse.ArgumentParser(prog="python -m yesterday", description=__doc__)
parser.add_argument("act", choices=["make"])
parser.add_argument("names", nargs="+", metavar="NAME", help=f"of {', '.join(RUNS)}")
make(parser.parse_args().names)
