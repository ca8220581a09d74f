"""x"""


def describe(): ...
