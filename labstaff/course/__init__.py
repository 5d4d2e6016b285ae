"""The nbgrader course: made from the labs, graded by the judge, without a kernel anywhere."""
