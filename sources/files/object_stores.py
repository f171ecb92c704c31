"""Objects in object storage, read by byte ranges, and never a changed one.

obstore speaks S3's, Google's and Azure's protocols and plain HTTP, and repeats what may pass until a deadline; whatever
else fsspec knows is read through that. An error's own text is never passed on: a store's answer may quote the key that
it refuses, and a URL may carry a signature. So a message says what the error's class means.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote, urlsplit

from ...workers.base import SourceError, need, read_whole
from .urls import is_url, split_url

_OBSTORE_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https")
_SERVER_VARIABLES = ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL")
_DEADLINE_S, _LONGEST_DEADLINE_S = 60.0, 86_400.0

_CREDENTIALS_LAST = timedelta(minutes=10)

_Answer = TypeVar("_Answer")


def deadline_s() -> float:
    """Return the seconds for which a read is repeated; raises SourceError if the environment says none."""
    given = os.environ.get("BLOBFEED_CLOUD_DEADLINE_S", str(_DEADLINE_S))
    with suppress(ValueError):
        if 0 < float(given) <= _LONGEST_DEADLINE_S:
            return float(given)
    raise SourceError(
        f"the environment variable BLOBFEED_CLOUD_DEADLINE_S is {given!r}; expected seconds, a number above 0 and up "
        f"to {_LONGEST_DEADLINE_S:g}, such as 60"
    )


class ObjectStore(ABC):
    """One bucket, one host, or the files of this one. `root`: its URL; keys are counted from there."""

    gone: ClassVar[tuple[type[Exception], ...]] = (FileNotFoundError,)
    """The classes by which the library says that there is no such object."""

    def __init__(self, root: str) -> None:
        self._root = root

    def url(self, key: str) -> str:
        """Return the object's URL, or the file's path."""
        return f"{self._root}/{key}"

    def size_and_version(self, key: str) -> tuple[int, str]:
        """Bytes of the object, and what changes whenever it does; raises SourceError."""
        return self._there(key, self.look(key))

    def look(self, key: str) -> tuple[int, str] | None:
        """The same, None if there is no such object."""
        return self._ask(key, lambda: self._look(key))

    def get(self, key: str, start: int, stop: int, version: str) -> memoryview:
        """Bytes [start, stop) of the object; raises SourceError, also if it is not of this version any more."""
        data, found = self._there(key, self._ask(key, lambda: self._get(key, start, stop, version)))
        if found != version:
            raise SourceError(
                f"{self.url(key)}: it was changed since it was examined (its version was {version} then and is "
                f"{found} now); start the training again, on objects that stay"
            )
        if len(data) != stop - start:
            raise SourceError(
                f"{self.url(key)}: of the bytes {start} to {stop} only {len(data)} came; start the training again, "
                "on objects that stay"
            )
        return data

    def get_whole(self, key: str) -> memoryview | None:
        """All bytes of the object, None if there is none; raises SourceError."""
        return self._ask(key, lambda: self._get_whole(key))

    def matching(self, pattern: str) -> list[str]:
        """Keys that match the glob `pattern`, in which only ** stands for folders, as on disk; raises SourceError."""
        listed = self.listed(re.split(r"[*?\[]", pattern)[0].rpartition("/")[0])
        parts = pattern.split("/")
        return [key for key in listed if _match(key.split("/"), parts)]

    def listed(self, prefix: str) -> dict[str, str]:
        """The keys below `prefix`, each with the size and the version of its object; raises SourceError."""
        return self._there(prefix, self._ask(prefix, lambda: self._list(prefix)))

    def _ask(self, key: str, request: Callable[[], _Answer]) -> _Answer | None:
        try:
            return request()
        except self.gone:
            return None
        except Exception as error:
            raise SourceError(f"{self.url(key)}: {self._meaning(error)}") from None

    def _there(self, key: str, answer: _Answer | None) -> _Answer:
        if answer is None:
            raise SourceError(f"{self.url(key)}: there is no such object")
        return answer

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
    def _meaning(self, error: Exception) -> str:
        """Return what a library's exception means."""


_MEANINGS = {
    "PreconditionError": "it was changed since it was examined; start the training again, on objects that stay",
    "PermissionDeniedError": (
        _REFUSED := "access was refused: renew the credentials, where the store's own tools look "
        "for them; https:// is read without any: use the store's own scheme, such as s3://"
    ),
    "UnauthenticatedError": _REFUSED,
    "NotSupportedError": "the server does not answer requests for a range of bytes",
    "InvalidPathError": "an object there has a name that cannot be read, with a part that is empty, '.' or '..': "
    "rename it, or name the others by a range of numbers, such as {000..146}",
    "ValueError": "no object can have this name: no part of it may be empty, '.' or '..'",
}
_NO_USE = (
    "the store gives no answer that can be used, and asking again, where that may help, did not within "
    "BLOBFEED_CLOUD_DEADLINE_S={:g} s: see whether it can be reached, whether the credentials have expired (public "
    "buckets need AWS_SKIP_SIGNATURE=true or GOOGLE_SKIP_SIGNATURE=true), and whether AWS_REGION is the bucket's"
)
"""The meaning of obstore's classes of exceptions; all that has no class of its own is its GenericError."""


class _Obstore(ObjectStore):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        import obstore

        self._obstore: Any = obstore
        deadline = timedelta(seconds=deadline_s())
        try:
            self._store = self._made(deadline)
        except Exception as error:
            raise SourceError(
                f"{self._root}: it cannot be opened ({type(error).__name__}): check the variables for account and "
                "credentials, such as AZURE_STORAGE_ACCOUNT_NAME, AWS_PROFILE and GOOGLE_APPLICATION_CREDENTIALS"
            ) from None

    def _made(self, deadline: timedelta) -> Any:
        # obstore finds another server in the environment by itself, and then refuses http:// in there.
        servers = (self._root, *(os.environ.get(name, "") for name in _SERVER_VARIABLES))
        from obstore import store

        # A loader's answers share the line: if it is slow, large ones take longer, though they come.
        options: dict[str, Any] = {"timeout": deadline, "connect_timeout": deadline / 3, "read_timeout": deadline / 3}
        if any(server.startswith("http:") for server in servers):
            options["allow_http"] = True
        # The deadline is to end the repetitions, and not their number. A base of 4 doubles the pause on the average.
        retries = {
            "retry_timeout": deadline,
            "max_retries": 1 << 20,
            "backoff": {"base": 4, "max_backoff": deadline / 12},
        }
        further = {"credential_provider": provider} if (provider := self._aws_profile()) else {}
        # Of the hosts of S3 and Azure, store.from_url would want a bucket and credentials.
        from_url: Any = store.HTTPStore.from_url if self._root.startswith("http") else store.from_url
        return from_url(self._root, client_options=options, retry_config=retries, **further)

    def _aws_profile(self) -> object | None:
        """Return what reads the credentials of ~/.aws, which obstore does not; None if the environment holds some."""
        if not self._root.startswith("s3") or not {"AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE"}.isdisjoint(os.environ):
            return None
        try:
            import boto3  # type: ignore[import-untyped]
            from obstore.auth.boto3 import Boto3CredentialProvider
        except ImportError:
            return None

        class Profile(Boto3CredentialProvider):
            def __call__(self) -> Any:
                self.credentials = boto3.Session().get_credentials()  # the files may be renewed during the training
                return super().__call__()

        session = boto3.Session()
        return Profile(session, ttl=_CREDENTIALS_LAST) if session.get_credentials() else None

    def _look(self, key: str) -> tuple[int, str]:
        meta = self._obstore.head(self._store, key)
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

    def _meaning(self, error: Exception) -> str:
        status = re.search(r"status code: (\d{3})", str(error))
        said = f" (status {status[1]})" if status else ""
        return _MEANINGS.get(type(error).__name__, _NO_USE.format(deadline_s())) + said


class _Fsspec(ObjectStore):
    """Any other scheme, chained URLs included (zip://…::…). `root` is the URL without the key."""

    gone = (FileNotFoundError, NotADirectoryError, IsADirectoryError, KeyError)

    def _opened(self, key: str) -> tuple[Any, str]:
        import fsspec  # type: ignore[import-untyped]

        found: tuple[Any, str] = fsspec.core.url_to_fs(self.url(key))
        return found

    def url(self, key: str) -> str:
        before, _, behind = split_url(self._root)
        return before + key + behind

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

    def _meaning(self, error: Exception) -> str:
        missing = f": {error}" if isinstance(error, ImportError) else ""  # says what to install, and no URL
        return f"fsspec cannot read it ({type(error).__name__}){missing}"


class _Disk(ObjectStore):
    """The files of this host. A key is an absolute path without its first slash."""

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

    def _meaning(self, error: Exception) -> str:
        return f"it cannot be read: {getattr(error, 'strerror', None) or error}"


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
        before, key, behind = split_url(url)
        return _store(_Fsspec, before + behind, os.getpid()), key
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
    return sorted((store.url(name), version) for name, version in store.listed(key).items())


@functools.cache
def _store(kind: type[ObjectStore], root: str, _process: int) -> ObjectStore:
    """One for each process: a forked copy would wait for threads that only its parent has."""
    return kind(root)
