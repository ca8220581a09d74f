"""Personal data that can be told by its form alone: replaced by a tag that names its kind."""

import re

_EMAIL = re.compile(
    r"(?<![\w.+-])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,24}(?![\w-])", re.ASCII
)
_IP = re.compile(r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.]*\d)", re.ASCII)
_ID_NUMBER = re.compile(
    r"(?<!\w)[1-9]\d{5}(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}[\dXx](?!\w)", re.ASCII
)
_PHONE = re.compile(
    r"(?<![\w+./-])(?:"
    r"(?:\+?86[- ]?)?1[3-9]\d[- ]?\d{4}[- ]?\d{4}"  # China, mobile
    r"|0\d{2,3}-\d{7,8}"  # China, fixed line
    r"|\+[1-9]\d{0,2}[- ]?(?:\(\d{1,4}\)[- ]?)?\d{2,4}(?:[- ]?\d{2,4}){2,3}"  # with a country's code
    r"|\(?[2-9]\d{2}\)?[- ][2-9]\d{2}-\d{4}"  # North America
    r")(?![\w/]|-\d|\.\d)",
    re.ASCII,
)
# GB 11643-1999: weights of the first 17 digits and the check characters by remainder.
_ID_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_ID_CHECKS = "10X98765432"


def mask_personal_data(text: str) -> str:
    """E-mail addresses, Chinese ID numbers (with a right check digit), phone numbers and IPv4 addresses become tags.

    `<email>`, `<id_number>`, `<phone>`, `<ip>`. Names, addresses and anything without a form of its own stay.
    """
    if "@" in text:
        text = _EMAIL.sub("<email>", text)
    text = _ID_NUMBER.sub(_mask_id_number, text)
    text = _PHONE.sub("<phone>", text)
    return _IP.sub("<ip>", text)


def _mask_id_number(found: re.Match[str]) -> str:
    number = found[0].upper()
    total = sum(int(digit) * weight for digit, weight in zip(number, _ID_WEIGHTS, strict=False))
    return "<id_number>" if _ID_CHECKS[total % 11] == number[17] else found[0]
