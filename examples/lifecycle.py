"""Keep a sandbox for later: stop it, come back to it, give it more memory, freeze it, and start over."""

from skerry import Sandbox, SandboxStopped


def main() -> None:
    with Sandbox.create(env={"STAGE": "first"}, resources={"memory": "200MB"}) as sandbox:
        sandbox.files.write("notes.txt", "remember this\n")
        sandbox.env.set("STAGE", "second")
        print("stopped:", sandbox.stop().state)

        careful = Sandbox.get(sandbox.id, auto_start=False)
        try:
            careful.exec("true")
        except SandboxStopped as error:
            print(error.code, "-", error.hint)

        print("started by a command:", sandbox.exec("cat notes.txt; echo $STAGE").stdout.split("\n"))

        info = sandbox.restart(env={"STAGE": "third"}, resources={"memory": "400MB"})
        print("restarted with", info.resources.memory, "bytes:", sandbox.exec("echo $STAGE").stdout.strip())

        counter = sandbox.processes.spawn("while :; do date +%s%N; sleep 0.01; done")
        print("frozen:", sandbox.pause().state)
        print("continues:", sandbox.resume().state, counter.poll().status)

        sandbox.reset(hard=True)
        print("reset:", sandbox.files.exists("notes.txt"), sandbox.exec("echo $STAGE").stdout.strip())
        sandbox.destroy(graceful=True, timeout=5)


if __name__ == "__main__":
    main()
