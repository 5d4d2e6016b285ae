"""A negative number is subtracted."""


def first_task(x):
    return x - (-1)
