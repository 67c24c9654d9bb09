"""`vitlab serve` under load, against LitServe and an endpoint in FastAPI with the same engine.

    python benchmarks/serve.py
    python benchmarks/serve.py --rounds 8 --clients 1 4 16 64 --overloads 0
    python benchmarks/serve.py --rounds 0 --names vitlab --overloads 1 --overload-seconds 60

JPEG in, JSON out, DeiT-Ti on ONNX Runtime. Servers take turns, in random order, and are stopped
(SIGSTOP) while another is measured; the load comes from another process (`http_load.py`). Closed
loops have so many clients; an overload sends three times the rate that 16 clients reached just
before, whatever the server does, and then measures 16 clients again one second later. In between,
two contestants without HTTP: `vitlab predict` over the same files, and decoding and computing one
image after the other. Nothing is timed unless all servers give the same answers.
Needs the extras `dev` and `serve`, fastapi and litserve, and real weights and photos (`deit.py`).
"""

import argparse
import json
import os
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from deit import PHOTOS, PLACE, WEIGHTS
from harness import HERE, ROOT, Process, Progress
from served_model import DEADLINE, TOP, Model

from vitlab.jobs.export import export
from vitlab.timing.referee import Contestant, compare, machine, quantile

OURS = "vitlab"
COMMANDS = {
    OURS: ("-m", "vitlab", "serve", "{model}", "--engine", "onnxruntime", "--port", "{port}"),
    "fastapi": (f"{HERE}/fastapi_server.py", "{model}", "{port}"),
    "litserve": (f"{HERE}/litserve_server.py", "{model}", "{port}", "1"),
    "litserve16": (f"{HERE}/litserve_server.py", "{model}", "{port}", "16"),
}
OFFLINE, ALONE = "vitlab predict", "decode and compute"
CAPACITY_CLIENTS, TIMES = 16, 3
TOLERANCE = 1e-5


class Server:
    """A server in a process group of its own, that is stopped unless it is measured."""

    def __init__(self, name: str, model: str, requests: Sequence[Path]) -> None:
        self.name, self._requests, self.port = name, [str(path) for path in requests], free_port()
        command = [one.format(model=model, port=self.port) for one in COMMANDS[name]]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", HERE)))},
        )

    def __enter__(self) -> "Server":
        until = time.monotonic() + 60
        while "200" not in self.load(clients=1, count=1, seconds=5)["times"]:
            if self._process.poll() is not None or time.monotonic() > until:
                self._log.seek(0)
                errors = self._log.read().decode(errors="replace")
                self.__exit__()
                raise SystemExit(f"{self.name} does not answer:\n{errors[-2000:]}")
            time.sleep(0.2)
        self._signal(signal.SIGSTOP)
        return self

    def __exit__(self, *exception: object) -> None:
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """The server may run."""
        self._signal(signal.SIGCONT)
        self.load(clients=2, seconds=0.5)
        yield
        self._signal(signal.SIGSTOP)

    def load(
        self,
        *,
        clients: int = 1,
        seconds: float,
        count: int | None = None,
        rate: float = 0.0,
        bodies: bool = False,
    ) -> dict[str, Any]:
        """Figures of a load (see `http_load.run`)."""
        given = {
            "port": self.port,
            "requests": self._requests,
            "deadline": DEADLINE,
            "clients": clients,
            "seconds": seconds,
            "count": count,
            "rate": rate,
            "bodies": bodies,
        }
        command = [sys.executable, str(HERE / "http_load.py"), json.dumps(given)]
        found: dict[str, Any] = json.loads(
            subprocess.run(command, check=True, capture_output=True).stdout
        )
        return found

    def memory(self) -> int:
        """Resident bytes of all its processes."""
        return sum(resident(pid) for pid in family(self._process.pid))

    def cpu(self) -> float:
        """CPU seconds that all its processes have used."""
        return sum(cpu_seconds(pid) for pid in family(self._process.pid))


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def family(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [pid, *(one for text in lists for child in text.split() for one in family(int(child)))]


def resident(pid: int) -> int:
    """Resident bytes of a process, without pages that it shares; 0: it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(
        1024 * int(line.split()[1])
        for line in text.splitlines()
        if line[:3] == "Pss" and line[3] == ":"
    )


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process; 0: it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Contestants without HTTP.


def offline(model: str, photos: list[str]) -> Callable[[], list[Any]]:
    """`vitlab predict` over all photos."""
    from vitlab.classify.classifier import open_classifier

    classifier = open_classifier(model, engine="onnxruntime")
    return lambda: [[one.label, one.top] for one in classifier.predict(photos, top=TOP)]


def alone(model: str, photos: list[str]) -> Callable[[], None]:
    """One photo after another, decoded and computed with all cores."""
    shared, contents, number = Model(model), [Path(photo).read_bytes() for photo in photos], 0

    def call() -> None:
        nonlocal number
        number = (number + 1) % len(contents)
        shared.compute([shared.decode(contents[number])])

    return call


# Measurements.


def same_answers(servers: Sequence[Server], expected: list[Any]) -> str:
    """The largest difference from `vitlab predict`; exits if a server answers anything else."""
    worst = 0.0
    for server in servers:
        with server.awake():
            bodies = server.load(seconds=600, count=len(expected), bodies=True)["bodies"]
        for body, (label, top) in zip(bodies[-1:] + bodies[:-1], expected, strict=True):
            (found,) = json.loads(body)["results"]
            if found["label"] != label:
                raise SystemExit(f"{server.name}: {found['label']}, vitlab predict: {label}")
            ours = dict(map(tuple, top))
            errors = [abs(ours.get(name, top[-1][1]) - value) for name, value in found["top"]]
            if max(errors) > TOLERANCE:
                raise SystemExit(f"{server.name}: probabilities differ by {max(errors):.2g}")
            worst = max(worst, *errors)
    return f"{len(expected)} photos: same labels, probabilities within {worst:.1g}"


def closed(server: Server, clients: int, seconds: float) -> dict[str, float]:
    """Images per second; quantiles of the latency and CPU time of an image, in milliseconds."""
    before = server.cpu()
    found = server.load(clients=clients, seconds=seconds)
    used = server.cpu() - before
    (status,) = found["times"]  # 200 and nothing else
    if status != "200":
        raise SystemExit(f"{server.name}: status {status} with {clients} clients")
    times = sorted(1e3 * one for one in found["times"]["200"])
    return {
        "rate": len(times) / found["elapsed"],
        "median": quantile(times, 0.5),
        "p99": quantile(times, 0.99),
        "cpu": 1e3 * used / len(times),
    }


def overload(server: Server, seconds: float) -> dict[str, float]:
    """What happens at three times the capacity, and one second after it."""
    capacity = closed(server, CAPACITY_CLIENTS, 4.0)["rate"]
    before = server.memory()
    with watching(server.memory) as seen:
        found = server.load(rate=TIMES * capacity, seconds=seconds)
    time.sleep(1.0)
    again = closed_again(server)
    good, refused = (sorted(found["times"].get(name, ())) for name in ("200", "429"))
    count = sum(map(len, found["times"].values()))
    in_time = sum(ended <= seconds for ended in found["ended"].get("200", ()))
    return {
        "capacity": capacity,
        "good": in_time / seconds / capacity,
        "good_median": quantile(good, 0.5) if good else float("nan"),
        "good_p99": quantile(good, 0.99) if good else float("nan"),
        "refused": len(refused) / count,
        "refused_p99": quantile(refused, 0.99) if refused else float("nan"),
        "neither": 1 - (len(good) + len(refused)) / count,
        "recovered": again / capacity,
        "memory_before": before,
        "memory_most": max([before, *seen]),
        "memory_after": server.memory(),
    }


def closed_again(server: Server) -> float:
    """Images per second after an overload; requests that are not answered are not counted."""
    found = server.load(clients=CAPACITY_CLIENTS, seconds=4.0)
    return len(found["times"].get("200", ())) / found["elapsed"]


@contextmanager
def watching(read: Callable[[], int]) -> Iterator[list[int]]:
    """Values of a function, every second."""
    seen: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(1.0):
            seen.append(read())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Everything measured."""
    model, photos = str(folder / "model.onnx"), prepare(folder, options.photos)
    found: dict[str, Any] = {"rounds": [], "overloads": []}
    order, progress = random.Random(options.seed), Progress(1)
    with ExitStack() as stack:
        given = {"model": model, "photos": photos}
        others = [
            stack.enter_context(
                Process(
                    Contestant(name=name, factory=f"serve:{function}", arguments=given),
                    threads=options.threads,
                )
            )
            for name, function in ((OFFLINE, "offline"), (ALONE, "alone"))
        ]
        referee = stack.enter_context(Process(machine(), threads=options.threads))
        requests = {name: write_requests(folder, name, photos) for name in options.names}
        servers = [
            stack.enter_context(Server(name, model, requests[name])) for name in options.names
        ]
        found["agreement"] = same_answers(servers, others[0].result())
        progress.start(f"{len(photos)} photos")
        for done in range(options.rounds):
            progress.round(done, options.rounds)
            found["rounds"].append(one_round(order, servers, others, referee, options))
        for done in range(options.overloads):
            progress.round(done, options.overloads)
            turns = {}
            for server in order.sample(servers, len(servers)):
                with server.awake():
                    turns[server.name] = overload(server, options.overload_seconds)
            found["overloads"].append(turns)
    return found


def one_round(
    order: random.Random,
    servers: Sequence[Server],
    others: Sequence[Any],
    referee: Any,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """A turn of everybody."""
    turns: dict[str, Any] = {"machine": referee.turn(calls=3, warm_up=1).seconds}
    for one in order.sample([*servers, *others], len(servers) + len(others)):
        if isinstance(one, Server):
            with one.awake():
                turns[one.name] = {
                    str(clients): closed(one, clients, options.seconds)
                    for clients in options.clients
                }
        elif one.name == OFFLINE:
            turns[OFFLINE] = options.photos / one.turn(calls=1, warm_up=1).seconds
        else:
            each = one.turn(calls=options.photos // 2, warm_up=5).each
            turns[ALONE] = 1e3 * statistics.median(each)
    return turns


def prepare(folder: Path, count: int) -> list[str]:
    """Export the model; photos of all classes."""
    files = sorted(PHOTOS.rglob("*.JPEG"))
    if not (files and WEIGHTS.is_file()):
        raise SystemExit(f"no photos or weights in {PLACE}")
    export(WEIGHTS, output=folder / "model.onnx")
    return [str(file) for file in files[:: len(files) // count][:count]]


def write_requests(folder: Path, name: str, photos: Sequence[str]) -> list[Path]:
    """Requests as they travel: an image; for LitServe, which reads forms and JSON, JSON."""
    place = folder / name
    place.mkdir()
    for number, photo in enumerate(photos):
        content, kind = Path(photo).read_bytes(), "image/jpeg"
        if name.startswith("litserve"):
            content = json.dumps({"image": b64encode(content).decode()}).encode()
            kind = "application/json"
        head = f"POST /classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
        head += f"Content-Length: {len(content)}\r\n\r\n"
        (place / f"{number:04}").write_bytes(head.encode() + content)
    return sorted(place.iterdir())


# The report.


def report(found: dict[str, Any], names: Sequence[str]) -> str:
    """Tables of all figures; ratios above 1: vitlab is ahead."""
    lines = [found["agreement"]]
    rounds, overloads = found["rounds"], found["overloads"]
    if rounds:
        slow = [turns["machine"] for turns in rounds]
        if max(slow) > 1.3 * min(slow):
            lines.append(f"warning: busy machine, x {max(slow) / min(slow):.2f}; measure again")
        for clients in rounds[0][names[0]]:
            lines += closed_table(rounds, names, clients)
        if OURS in names:
            lines += against_offline(rounds)
    if overloads:
        lines += overload_table(overloads, names)
    return "\n".join(lines)


def closed_table(rounds: Sequence[Any], names: Sequence[str], clients: str) -> list[str]:
    head = f"  {'':12} {'images/s':>9} {'median ms':>10} {'p99 ms':>8} {'CPU ms':>7}"
    lines = [f"\n{clients} clients", head]
    for name in names:
        turns = [one[name][clients] for one in rounds]
        rate, median, p99, cpu = (
            statistics.median(turn[figure] for turn in turns)
            for figure in ("rate", "median", "p99", "cpu")
        )
        line = f"  {name:12} {rate:9.1f} {median:10.1f} {p99:8.1f} {cpu:7.1f}"
        if name != OURS and OURS in names:
            speed = [one[OURS][clients]["rate"] / one[name][clients]["rate"] for one in rounds]
            latency = [
                one[name][clients]["median"] / one[OURS][clients]["median"] for one in rounds
            ]
            line += f"   rate {ratio(speed)}, latency {ratio(latency)}"
        lines.append(line)
    return lines


def against_offline(rounds: Sequence[Any]) -> list[str]:
    """Lone latency against decoding and computing alone, throughput against `vitlab predict`."""
    speed = statistics.median(turns[OFFLINE] for turns in rounds)
    lines = [f"\n{OFFLINE}: {speed:.1f} images/s"]
    if "16" in rounds[0][OURS]:
        share = [turns[OURS]["16"]["rate"] / turns[OFFLINE] for turns in rounds]
        lines.append(f"  16 clients over HTTP: {ratio(share)} of it")
    bare = statistics.median(turns[ALONE] for turns in rounds)
    lines.append(f"{ALONE} one image: {bare:.2f} ms")
    if "1" in rounds[0][OURS]:
        limit = [turns[OURS]["1"]["median"] / (1.05 * turns[ALONE] + 2.0) for turns in rounds]
        lines.append(f"  lone request: {ratio(limit)} of 1.05 x that + 2 ms")
    return lines


def overload_table(overloads: Sequence[Any], names: Sequence[str]) -> list[str]:
    lines = [
        f"\nthree times the capacity ({len(overloads)} times)",
        f"  {'':12} {'images/s':>9} {'200':>6} {'429':>6} {'none':>6} {'200 s':>6}"
        f" {'429 p99 ms':>11} {'memory':>7} {'most':>6} {'after 1 s':>9}",
    ]
    for name in names:
        turns = [one[name] for one in overloads]

        def middle(figure: str, turns: Sequence[Any] = turns) -> float:
            return statistics.median(turn[figure] for turn in turns)

        growth, most = (
            statistics.median(turn[figure] / turn["memory_before"] - 1 for turn in turns)
            for figure in ("memory_after", "memory_most")
        )
        line = (
            f"  {name:12} {middle('capacity'):9.1f} {middle('good'):6.1%} {middle('refused'):6.1%}"
        )
        line += f" {middle('neither'):6.1%} {middle('good_median'):6.2f}"
        line += f" {1e3 * middle('refused_p99'):11.1f} {growth:+7.1%} {most:+6.1%}"
        line += f" {middle('recovered'):9.1%}"
        if name != OURS and OURS in names:
            ours = [one[OURS]["good"] * one[OURS]["capacity"] for one in overloads]
            theirs = [max(one[name]["good"] * one[name]["capacity"], 0.01) for one in overloads]
            line += f"   answered {ratio([a / b for a, b in zip(ours, theirs, strict=True)])}"
        lines.append(line)
    return lines


def ratio(ratios: Sequence[float]) -> str:
    """Median with its interval."""
    found = compare([ratios])
    return f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"


def parse() -> argparse.Namespace:
    """The command line."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--names", nargs="+", default=list(COMMANDS), choices=COMMANDS)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each closed loop")
    parser.add_argument("--overloads", type=int, default=6)
    parser.add_argument("--overload-seconds", type=float, default=10.0)
    parser.add_argument("--photos", type=int, default=200)
    parser.add_argument("--threads", type=int, default=cores)
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers are ended, too
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options)
    print(f"\n{report(found, options.names)}")
    if options.json is not None:
        system = {"processor": platform.processor(), "system": platform.platform()}
        options.json.write_text(json.dumps({"machine": system, **found}, indent=1))


if __name__ == "__main__":
    main()
