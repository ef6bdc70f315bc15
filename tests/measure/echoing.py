"""What a worker does in tests of its line; nothing heavy is imported with it."""

from tqdm import tqdm


def echo(driver, number: int) -> None:
    """Tell its number, then what it is sent, until the driver hangs up."""
    driver.send(number)
    while True:
        driver.send(driver.recv())


def lock_of_bars(driver, number: int) -> None:
    """Tell what kind of lock the progress bars of libraries have."""
    driver.send(type(tqdm.get_lock()).__name__)
