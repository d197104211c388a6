"""Leave a server running in a sandbox and come back to it from another connection."""

from skerry import Sandbox

SERVER = """
import http.server, sys
server = http.server.HTTPServer(("127.0.0.1", 8000), http.server.SimpleHTTPRequestHandler)
print("listening", flush=True)
server.serve_forever()
"""


def main() -> None:
    with Sandbox.create() as sandbox:
        sandbox.files.write("index.html", "hello from inside\n")
        server = sandbox.processes.spawn(["python3", "-c", SERVER])
        for chunk in server:  # attaches; it ends with the process, so stop at the first output
            print(chunk.data.decode(), end="")
            break

        again = Sandbox.connect(sandbox.id)  # could be another program
        fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000').read().decode(), end='')"
        print(again.exec(["python3", "-c", fetch], check=True).stdout, end="")
        for process in again.processes.list():
            print(process.id, process.status.value, process.argv[0])
        print(again.processes.get(server.id).output().stderr.decode(), end="")
        again.close()

        server.kill()
        print("ended:", server.wait().status.value)


if __name__ == "__main__":
    main()
