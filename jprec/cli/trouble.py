"""What the user can mend: one clear line and exit status 2."""


class Trouble(Exception):
    """Bad input or a place that cannot be written; the message says what to do."""
