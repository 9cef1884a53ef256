"""What holds for every test."""

import os

# The models of the tests are small: more threads cost more than they save, above all where the
# machine has other work. A test that is about threads sets their number itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")
