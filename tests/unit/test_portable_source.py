"""What is installed or builds it calls nothing that only Linux or POSIX has, unless the same function has its counterpart."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [*sorted((ROOT / "src").rglob("*.py")), ROOT / "tasks.py", ROOT / "build_backend.py"]
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty", "msvcrt", "winreg", "_winapi"}
OF_OS = {"chown", "fork", "forkpty", "getgid", "getloadavg", "getpgid", "getsid", "getuid", "kill", "killpg", "mkfifo"}
OF_OS |= {"nice", "sched_getaffinity", "sched_setaffinity", "setsid", "statvfs", "sysconf", "uname", "wait", "waitpid"}
OF_OS |= {
    "getppid",
    "O_RDONLY",
    "O_DIRECTORY",
    "startfile",
}  # a folder has no number on Windows, nor a parent that has ended a new one
OF_SIGNAL = {"SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2", "alarm", "pause"}
OF_SIGNAL |= {"pthread_sigmask", "setitimer", "sigwait"}
KEYWORDS = {"preexec_fn", "start_new_session", "process_group", "pass_fds"}
FILELESS = {"os", "tarfile", "Image", "webbrowser"}  # whose `open` opens no text
DEVICES = re.compile(r"/(dev|proc|sys|tmp|usr|etc)/")
ALLOWED = {
    "data/files.py": {"/dev/"},  # names of devices that may be read, where there are any
    "tasks.py": {"/bin/"},
}


def is_counterpart(node):
    """Whether a node asks for the system, or for what it has."""
    if isinstance(node, ast.ExceptHandler):
        return node.type is not None and re.search("ImportError|AttributeError", ast.unparse(node.type))
    if not isinstance(node, ast.Compare | ast.Call):
        return False
    return ast.unparse(node).startswith(("sys.platform", "hasattr(os,", "getattr(signal,", "suppress(ImportError)"))


def uses_one_system(node):
    """What a node needs that not every system has, in words; an empty string if nothing."""
    match node:
        case ast.Import(names=names) if {name.name for name in names} & MODULES:
            return f"import {names[0].name}"
        case ast.ImportFrom(module=module) if module in MODULES:
            return f"import {module}"
        case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in OF_OS:
            return f"os.{name}"
        case ast.Attribute(value=ast.Name(id="signal"), attr=name) if name in OF_SIGNAL:
            return f"signal.{name}"
        case ast.keyword(arg=name) if name in KEYWORDS:
            return f"{name}="
        case ast.Attribute(value=ast.Name(id="ctypes"), attr="windll"):
            return "ctypes.windll"
        case ast.Call(func=ast.Attribute(attr="get_context"), args=[ast.Constant(value="fork" | "forkserver")]):
            return "fork"
        case ast.Constant(value=str(text)) if DEVICES.match(text):
            return DEVICES.match(text)[0]
    return text_without_encoding(node)


def text_without_encoding(node):
    """A file opened as text in the encoding of the system, which is seldom UTF-8 on Windows."""
    if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
        return ""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in ("read_text", "write_text"):
        return f"{name} without encoding"
    if name != "open":
        return ""
    words = [ast.unparse(argument) for argument in [*node.args, *(keyword.value for keyword in node.keywords)]]
    is_file = isinstance(node.func, ast.Name) or ast.unparse(node.func).split(".")[0] not in FILELESS
    in_bytes = any(re.fullmatch(r"'[rwax+]*b[rwax+]*'", word) for word in words)
    return "open without encoding" if is_file and not in_bytes else ""


def scopes(tree):
    """Each function with what is in it, and the rest of the module with what is in no function."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = {id(inner) for function in functions for inner in ast.walk(function)}
    yield from ((function.name, list(ast.walk(function))) for function in functions)
    yield "", [node for node in ast.walk(tree) if id(node) not in inside]


def unportable(source):
    """Pairs of a function and what it needs of one system without having a counterpart."""
    for name, nodes in scopes(ast.parse(source)):
        needed = {found for node in nodes if (found := uses_one_system(node))}
        excused = {found for found in needed if "without" not in found and any(map(is_counterpart, nodes))}
        yield from ((name, found) for found in sorted(needed - excused))


def test_the_source_calls_nothing_that_only_one_system_has():
    found = {}
    for file in FILES:
        allowed = next((kinds for end, kinds in ALLOWED.items() if file.as_posix().endswith(end)), set())
        calls = [call for call in unportable(file.read_text(encoding="utf-8")) if call[1] not in allowed]
        if calls:
            found[file.relative_to(ROOT).as_posix()] = calls
    assert found == {}
    assert len(FILES) > 300


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import fcntl", 1),
        ("def f():\n    import fcntl", 1),
        ("def f():\n    with suppress(ImportError):\n        import fcntl", 0),
        ("def f():\n    os.kill(1, signal.SIGKILL)", 2),
        ("def f():\n    if sys.platform == 'win32':\n        return\n    os.open(folder, os.O_RDONLY)", 0),
        ("def f():\n    Path('/proc/cpuinfo').read_text(encoding='utf-8')", 1),
        ("path.open('w')", 1),
        ("path.open('wb')", 0),
        ("path.write_text(text)", 1),
        ("multiprocessing.get_context('fork')", 1),
        ("Popen(command, start_new_session=True)", 1),
    ],
)
def test_a_call_that_only_one_system_has_is_found(source, count):
    assert len(list(unportable(source))) == count
