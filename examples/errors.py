"""A command that fails is a result; every other failure is an error with a type, a code and a hint."""

from skerry import CommandFailed, CommandNotFound, QuotaExceeded, Resources, Sandbox, SkerryError, Unsupported


def main() -> None:
    with Sandbox.create(name="errors-example") as sandbox:
        result = sandbox.exec("echo oops >&2; exit 3")
        print("exit code", result.exit_code, "stderr", result.stderr.strip())

        late = sandbox.exec("echo so far; sleep 60", timeout=0.5)
        print("timed out:", late.timed_out, "kept:", late.stdout.strip())

        try:
            sandbox.exec("exit 3", check=True)
        except CommandFailed as error:
            print(error.code, error.result.exit_code)
        try:
            sandbox.exec(["no-such-program"])
        except CommandNotFound as error:
            print(error.code, "-", error.hint)
        try:
            Sandbox.create(resources=Resources(memory=10**15))
        except QuotaExceeded as error:
            print(error.code, "-", error)
        try:
            Sandbox.create(region="eu")
        except Unsupported as error:
            print(error.code, error.option)
        try:
            Sandbox.create(name="errors-example")
        except SkerryError as error:  # the base of all errors
            print(error.code, "retryable:", error.retryable)


if __name__ == "__main__":
    main()
