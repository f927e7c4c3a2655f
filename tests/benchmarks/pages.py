"""Reading what the benchmark's pages say."""


def cells(text: str, first: str) -> list[str]:
    """The cells of the one table line that begins with `first`, without that one."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]
