"""What a worker does in tests of its line; nothing heavy is imported with it."""


def echo(driver, number: int) -> None:
    """Tell its number, then what it is sent, until the driver hangs up."""
    driver.send(number)
    while True:
        driver.send(driver.recv())
