"""Objects in object storage, read by byte ranges: retried with back-off up to a deadline, and never a changed one.

obstore speaks S3's, Google's and Azure's protocols and plain HTTP; whatever else fsspec knows is read through that.
All retries are made here and none by the libraries, so that one deadline holds for all of them. An error's own text is
never passed on: a store's answer may quote the key that it refuses, and a URL may carry a signature.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from ...base import BlobfeedError, SourceError, is_url, need, read_whole

_OBSTORE_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https")
_SERVER_VARIABLES = ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL")
_DEADLINE_S, _LONGEST_DEADLINE_S = 60.0, 86_400.0
_SILENCE_S = 20.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_GAVE_UP_FOR_S = 10.0
"""The time for which a store that did not answer gets a single attempt: a task's rows are tried one by one."""

_chance = random.SystemRandom()
"""A generator of its own: Python's is the user's, and forked loaders would draw equal numbers from a copy."""

_Answer = TypeVar("_Answer")


def deadline_s() -> float:
    """Return the seconds that one read may take with its retries; raises SourceError if the environment says none."""
    given = os.environ.get("BLOBFEED_CLOUD_DEADLINE_S", str(_DEADLINE_S))
    with suppress(ValueError):
        if 0 < float(given) <= _LONGEST_DEADLINE_S:
            return float(given)
    raise SourceError(
        f"the environment variable BLOBFEED_CLOUD_DEADLINE_S is {given!r}; expected seconds, a number above 0 and up "
        f"to {_LONGEST_DEADLINE_S:g}, such as 60"
    )


class Gone(BlobfeedError):
    """There is no such object."""


class _Refused(BlobfeedError):
    """The store does not accept the credentials, or wants some."""


class _Final(BlobfeedError):
    """No repetition would help."""


class ObjectStore(ABC):
    """One bucket, one host, or the files of this one. `root`: its URL; keys are counted from there."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._gave_up = float("-inf")

    def size_and_version(self, key: str) -> tuple[int, str]:
        """Bytes of the object, and what changes whenever it does; raises SourceError."""
        return self._persist(key, lambda: self._look(key))

    def look(self, key: str) -> tuple[int, str] | None:
        """The same, None if there is no such object."""
        with suppress(Gone):
            return self._persist(key, lambda: self._look(key), may_lack=True)
        return None

    def get(self, key: str, start: int, stop: int, version: str) -> memoryview:
        """Bytes [start, stop) of the object; raises SourceError, also if it is not of this version any more."""
        return self._persist(key, lambda: self._checked(key, start, stop, version))

    def get_whole(self, key: str) -> memoryview | None:
        """All bytes of the object, None if there is none; raises SourceError."""
        with suppress(Gone):
            return self._persist(key, lambda: self._get_whole(key), may_lack=True)
        return None

    def matching(self, pattern: str) -> list[str]:
        """Keys that match the glob `pattern`, in which only ** stands for folders, as on disk; raises SourceError."""
        listed = self.listed(re.split(r"[*?\[]", pattern)[0].rpartition("/")[0])
        parts = pattern.split("/")
        return [key for key in listed if _match(key.split("/"), parts)]

    def listed(self, prefix: str) -> dict[str, str]:
        """The keys below `prefix`, each with the size and the version of its object; raises SourceError."""
        return self._persist(prefix, lambda: self._list(prefix))

    def _checked(self, key: str, start: int, stop: int, version: str) -> memoryview:
        data, found = self._get(key, start, stop, version)
        if found != version:
            raise SourceError(
                f"{self._root}/{key}: it was changed since it was examined (its version was {version} then and is "
                f"{found} now); start the training again, on objects that stay"
            )
        if len(data) != stop - start:
            raise ConnectionError(f"the answer had {len(data)} bytes instead of {stop - start}")
        return data

    @abstractmethod
    def _look(self, key: str) -> tuple[int, str]: ...

    @abstractmethod
    def _get(self, key: str, start: int, stop: int, version: str) -> tuple[memoryview, str]:
        """The bytes, and the version that they are of; if it is another, the store may raise."""

    @abstractmethod
    def _get_whole(self, key: str) -> memoryview: ...

    @abstractmethod
    def _list(self, prefix: str) -> dict[str, str]: ...

    @abstractmethod
    def _named(self, error: Exception) -> Exception:
        """Return what a library's exception means: Gone, _Refused, _Final, or another if one more attempt may help."""

    @abstractmethod
    def _renew(self) -> None:
        """Look for credentials again."""

    def _persist(self, key: str, attempt: Callable[[], _Answer], *, may_lack: bool = False) -> _Answer:
        begun, attempts, pause, renewed = time.monotonic(), 0, _FIRST_PAUSE_S, False
        is_down = begun - self._gave_up < _GAVE_UP_FOR_S
        url = f"{self._root}/{key}"
        while True:
            attempts += 1
            try:
                return attempt()
            except SourceError:
                raise
            except Exception as error:
                trouble = self._named(error)
            if isinstance(trouble, Gone) and may_lack:
                raise trouble from None
            if isinstance(trouble, Gone | _Final):
                raise SourceError(f"{url}: {trouble}") from None
            if isinstance(trouble, _Refused):
                if renewed:
                    advice = (
                        "https:// is read without credentials: use the store's own scheme, such as s3://"
                        if url.startswith("http")
                        else "renew the credentials, where the store's own tools look for them"
                    )
                    raise SourceError(f"{url}: {trouble}; {advice}") from None
                self._renew()
                renewed = True
                continue
            waited = time.monotonic() - begun
            if is_down or waited + pause > deadline_s():
                self._gave_up = time.monotonic()
                reason = (
                    "it gave no answer in a read shortly before"
                    if is_down
                    else f"the deadline is {deadline_s():g} s, set by BLOBFEED_CLOUD_DEADLINE_S"
                )
                count = f"{attempts} attempt{'s' if attempts > 1 else ''}"
                raise SourceError(f"{url}: {trouble}; given up after {count} in {waited:.1f} s ({reason})") from None
            time.sleep(pause * _chance.uniform(0.5, 1))
            pause = min(2 * pause, _LONGEST_PAUSE_S)


class _Obstore(ObjectStore):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        import obstore

        self._obstore: Any = obstore
        self._renew()

    def _renew(self) -> None:
        longest = deadline_s() / 2
        try:
            self._store = self._made(longest)
        except Exception as error:
            raise SourceError(
                f"{self._root}: it cannot be opened ({type(error).__name__}): check the variables for account and "
                "credentials, such as AZURE_STORAGE_ACCOUNT_NAME, AWS_PROFILE and GOOGLE_APPLICATION_CREDENTIALS"
            ) from None

    def _made(self, longest_s: float) -> Any:
        # obstore finds another server in the environment by itself, and then refuses http:// in there.
        servers = (self._root, *(os.environ.get(name, "") for name in _SERVER_VARIABLES))
        plain = any(server.startswith("http:") for server in servers)
        from obstore import store

        silence = min(_SILENCE_S, longest_s)
        options: dict[str, Any] = dict.fromkeys(("connect_timeout", "read_timeout"), timedelta(seconds=silence))
        # A loader's answers share the line: if it is slow, large ones take longer, though they come.
        options["timeout"] = timedelta(seconds=longest_s)
        if plain:
            options["allow_http"] = True
        further = {"credential_provider": provider} if (provider := self._aws_profile()) else {}
        # Of the hosts of S3 and Azure, store.from_url would want a bucket and credentials.
        from_url: Any = store.HTTPStore.from_url if self._root.startswith("http") else store.from_url
        return from_url(self._root, client_options=options, retry_config={"max_retries": 0}, **further)

    def _aws_profile(self) -> object | None:
        """The credentials of ~/.aws by way of boto3, if they are not in the environment: obstore does not read them."""
        if not self._root.startswith("s3") or not {"AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE"}.isdisjoint(os.environ):
            return None
        try:
            import boto3  # type: ignore[import-untyped]
            from obstore.auth.boto3 import Boto3CredentialProvider
        except ImportError:
            return None
        session = boto3.Session()
        return Boto3CredentialProvider(session) if session.get_credentials() else None

    def _look(self, key: str) -> tuple[int, str]:
        # Not by HEAD: the answer to that says neither why it is refused nor whether the server knows ranges. Two bytes:
        # s3rver takes a range whose last byte is number 0 for one without an end.
        meta = self._obstore.get(self._store, key, options={"range": (0, 2)}).meta
        return meta["size"], _version(meta)

    def _get(self, key: str, start: int, stop: int, version: str) -> tuple[memoryview, str]:
        options: Any = {"range": (start, stop)}
        if version.startswith('"'):  # a weak tag, W/"…", never matches; and not every server knows If-Match
            options["if_match"] = version
        result = self._obstore.get(self._store, key, options=options)
        return memoryview(result.bytes()), _version(result.meta)

    def _get_whole(self, key: str) -> memoryview:
        return memoryview(self._obstore.get(self._store, key).bytes())

    def _list(self, prefix: str) -> dict[str, str]:
        pages = self._obstore.list(self._store, prefix or None)
        return {meta["path"]: f"{meta['size']} {_version(meta)}" for page in pages for meta in page}

    def _named(self, error: Exception) -> Exception:
        from obstore import exceptions

        # In the object's URL any word may stand; that of a cloud's own address says what was asked for: credentials.
        text = re.sub(r'https?://(?!169\.254\.)[^\s<"]+', "", str(error).partition("\n\nDebug source")[0])
        status, code = (re.search(pattern, text) for pattern in (r"status code: (\d{3})", r"<Code>(\w+)</Code>"))
        said = f"status {status[1]}" if status else "the connection failed or was too slow"
        said += f" ({code[1]})" if code else ""
        refused = _Refused(f"access was refused: {said if status else 'no credentials were found'}")
        gone = Gone(f"there is no such {'bucket' if code and code[1] == 'NoSuchBucket' else 'object'}")
        passes = status and (status[1] in ("408", "429") or status[1].startswith("5"))
        if "//169.254." in text and not passes:  # the address at which a cloud's machine gets its credentials
            return _Refused(
                "access was refused: no credentials were found (AWS_SKIP_SIGNATURE=true or GOOGLE_SKIP_SIGNATURE=true "
                "reads public buckets)"
            )
        match error:
            case FileNotFoundError() | exceptions.NotFoundError():
                return gone
            case exceptions.PreconditionError():
                return _Final("it was changed since it was examined; start the training again, on objects that stay")
            case exceptions.PermissionDeniedError() | exceptions.UnauthenticatedError():
                return refused
            case exceptions.NotSupportedError():
                return _Final(_NO_RANGES)
            case exceptions.InvalidPathError():
                return _Final(
                    "an object there has a name that cannot be read, with a part that is empty, '.' or '..': rename "
                    "it, or name the others by a range of numbers, such as {000..146}"
                )
            case ValueError():
                return _Final("no object can have this name: no part of it may be empty, '.' or '..'")
            case ConnectionError():  # of our own: it says nothing secret, as a library's text may
                return error
        # The rest is obstore's GenericError, for all that has no class of its own.
        if status and status[1] == "404":
            return gone
        if (code and re.search("Token|Expired|AccessKey|Signature", code[1])) or "redential" in text:
            return refused
        if known := next((meaning for pattern, meaning in _FINAL.items() if re.search(pattern, text)), ""):
            return _Final(known)
        return _Final(said) if status and status[1].startswith("4") and not passes else ConnectionError(said)


_NO_RANGES = "the server does not answer requests for a range of bytes"
_FINAL = {
    r"Content-Length Header missing": "the server does not say how long its answers are (Content-Length)",
    r"(?i)non-partial|Content.Range": _NO_RANGES,
    r"redirect without LOCATION": "the bucket is in another region; set AWS_REGION to it",
    r"status code: 416": "it is empty, or cut short",
}
"""The errors that no repetition helps and that obstore gives no class, by its words."""


class _Fsspec(ObjectStore):
    """Any other scheme, chained URLs included (zip://…::…). `root` is what stands before the key's slash."""

    def _opened(self, key: str) -> tuple[Any, str]:
        import fsspec  # type: ignore[import-untyped]

        found: tuple[Any, str] = fsspec.core.url_to_fs(f"{self._root}/{key}")
        return found

    def _renew(self) -> None:
        import fsspec

        fsspec.AbstractFileSystem.clear_instance_cache()

    def _look(self, key: str) -> tuple[int, str]:
        system, path = self._opened(key)
        info = system.info(path)
        return int(info["size"]), _version_of(info)

    def _get(self, key: str, start: int, stop: int, version: str) -> tuple[memoryview, str]:
        system, path = self._opened(key)
        return memoryview(system.cat_file(path, start, stop)), self._look(key)[1]

    def _get_whole(self, key: str) -> memoryview:
        system, path = self._opened(key)
        return memoryview(system.cat_file(path))

    def _list(self, prefix: str) -> dict[str, str]:
        system, path = self._opened(prefix)
        found: dict[str, Mapping[str, Any]] = system.find(path, detail=True)
        below = {(name.partition(path)[2] if path else name).lstrip("/"): info for name, info in found.items()}
        return {
            f"{prefix.rstrip('/')}/{name}" if prefix else name: f"{info['size']} {_version_of(info)}"
            for name, info in below.items()
        }

    def _named(self, error: Exception) -> Exception:
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | KeyError):
            return Gone("there is no such object")
        if isinstance(error, PermissionError):
            return _Refused("access was refused")
        if isinstance(error, ValueError | ImportError | NotImplementedError):
            missing = f": {error}" if isinstance(error, ImportError) else ""  # says what to install, and no URL
            return _Final(f"fsspec cannot read it ({type(error).__name__}){missing}")
        return ConnectionError(f"reading it through fsspec failed ({type(error).__name__})")


class _Disk(ObjectStore):
    """The files of this host. A key is an absolute path without its first slash; nothing is tried again."""

    def _renew(self) -> None:
        """Does nothing: files need no credentials."""

    def _look(self, key: str) -> tuple[int, str]:
        status = os.stat(f"/{key}")  # noqa: PTH116 - for each chunk: a Path costs more
        return status.st_size, f"{status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"

    def _get(self, key: str, start: int, stop: int, version: str) -> tuple[memoryview, str]:
        with open(f"/{key}", "rb") as file:  # noqa: PTH123
            file.seek(start)
            return memoryview(file.read(stop - start)), self._look(key)[1]

    def _get_whole(self, key: str) -> memoryview:
        return memoryview(read_whole(os.fsencode(f"/{key}")))

    def _list(self, prefix: str) -> dict[str, str]:
        paths = (f"{place}/{name}" for place, _, names in os.walk(f"/{prefix}", followlinks=True) for name in names)
        looks = ((path, os.stat(path)) for path in paths)  # noqa: PTH116 - there may be a million
        return {path[1:]: f"{status.st_size} {status.st_mtime_ns}" for path, status in looks}

    def _named(self, error: Exception) -> Exception:
        if isinstance(error, FileNotFoundError):
            return Gone("there is no such file")
        return _Final(f"it cannot be read: {getattr(error, 'strerror', None) or error}")


def _match(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Return true if the parts of a glob stand for these names of folders and an object, ** for any folders or none."""
    if not names or not parts:
        return not names and not parts
    if parts[0] == "**":
        if parts[1:2] == ["**"]:  # which stands for no more, and would take exponential time
            return _match(names, parts[1:])
        rest = parts[1:] or ["*"]  # at the end it stands for the object as well
        return any(_match(names[start:], rest) for start in range(len(names)))
    return fnmatch.fnmatchcase(names[0], parts[0]) and _match(names[1:], parts[1:])


def _version(meta: Any) -> str:
    return str(meta["e_tag"] or f"modified {meta['last_modified'].isoformat()}, {meta['size']} bytes")


def _version_of(info: Mapping[str, Any]) -> str:
    """Return the version of an object by what fsspec says of it."""
    named = ["ETag", "etag", "LastModified", "last_modified", "mtime", "modified", "date_time", "CRC"]
    named += ["blob_id", "sha", "modify", "modificationTime"]
    return repr([(name, info[name]) for name in named if name in info] or sorted(info.items(), key=str))


def locate(url: str) -> tuple[ObjectStore, str]:
    """The store of a URL, or of a path, and the key in there.

    Raises SourceError for a URL that cannot be read, ExtraMissing.
    """
    if not is_url(url):
        return _store(_Disk, "", os.getpid()), os.path.abspath(url).lstrip("/")  # noqa: PTH100 - links are not followed
    parts = urlsplit(url)
    if parts.scheme not in _OBSTORE_SCHEMES or "::" in url:
        need("fsspec", f"{parts.scheme}://")
        # A chain's first scheme alone does not say which store it is.
        begin, slashes, key = url.partition("://") if "://" in url else url.partition("/")
        root = begin + slashes[:-1]
        return _store(_Fsspec, root, os.getpid()), key
    need("obstore", f"reading {parts.scheme}://{parts.hostname}")
    secret = parts.username or (parts.query and parts.scheme.startswith("http"))
    if secret and not parts.scheme.startswith("ab"):  # abfs and abfss name a container before the @
        raise SourceError(
            f"{parts.scheme}://{parts.hostname}{parts.path}: a user name, password or query in a URL is not read: give "
            "credentials as the store's own tools take them"
        )
    key = unquote(parts.path) if parts.scheme.startswith("http") else url.partition("://")[2].partition("/")[2]
    return _store(_Obstore, f"{parts.scheme}://{parts.netloc}", os.getpid()), key.lstrip("/")


def objects_below(url: str, what: str, or_else: str = "") -> list[tuple[str, str]]:
    """URL, or path, and version of each object below the folder `url`, for a cache to go by; raises SourceError.

    `what` begins its message, `or_else` ends it.
    """
    if is_url(url) and (url.startswith("http") or "::" in url.partition("://")[2]):
        raise SourceError(
            f"{what}: {url} cannot be cached: https lists no folder, nor does a chain of URLs, so a change "
            "in it would not be noticed; leave out 'cache', or read from a store that lists its objects, such as "
            f"s3://{or_else}"
        )
    store, key = locate(url)
    root = url.removesuffix(key).rstrip("/")
    return sorted((f"{root}/{name}", version) for name, version in store.listed(key).items())


@functools.cache
def _store(kind: type[ObjectStore], root: str, _process: int) -> ObjectStore:
    """One for each process: a forked copy would wait for threads that only its parent has."""
    return kind(root)
