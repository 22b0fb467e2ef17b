"""The error that ends a command with one line and exit status 2."""


class ToolError(Exception):
    """What is wrong with a file or an argument, in one sentence."""


def first_line(error: BaseException) -> str:
    """An exception of another library in one line."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
