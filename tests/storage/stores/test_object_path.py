"""Paths in an object store behave like local ones, and errors are stated plainly."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from storage import open_dataset
from storage.errors import DataError
from storage.stores import object_store
from storage.stores.locations import parse_path
from storage.stores.object_path import ObjectPath
from tests.support.object_proxy import (
    AFTER,
    BEFORE,
    BROKEN,
    DENIED,
    MIDWAY,
    THROTTLED,
    Fault,
    ProxyRequest,
    fail_always,
    fail_every,
    fail_writes,
)
from tests.support.object_servers import StoreServer

ODD = ["a b", "ç/ğ", "50%", "%C3%A7", "a+b", "a&b=c", "x~y'(z)", 'quote"d', "star*"]


@pytest.mark.parametrize(
    "text", ["a", "a/b", "a/b.zarr", "/a//b/", "a.b/c.tar.gz", "a b/ç", "./a/./b"]
)
def test_parts_are_those_of_a_path(text):
    path, like = parse_path(f"s3://bucket/{text}"), Path(text.strip("/"))
    assert (path.name, path.stem, path.suffix) == (like.name, like.stem, like.suffix)
    assert str(path) == f"s3://bucket/{like.as_posix()}"
    assert str(path / "c" / "d") == f"{path}/c/d"
    assert path.with_name("other").key == like.with_name("other").as_posix()
    assert (path / "c").parent == path
    assert parse_path(str(path)) == path
    assert parse_path(path) is path


def test_the_folder_of_the_first_part_is_the_bucket():
    bucket = parse_path("s3://bucket/a").parent
    assert str(bucket) == "s3://bucket"
    assert bucket / "b" == parse_path("s3://bucket/b")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://", "s3://BUCKET/PATH"),
        ("s3://bucket", "s3://BUCKET/PATH"),
        ("s3://bucket/", "s3://BUCKET/PATH"),
        ("s3:///path", "s3://BUCKET/PATH"),
        ("s3://bucket/a/../b", "s3://BUCKET/PATH"),
        ("s3://bucket/a?X-Amz-Signature=hunter2", "without ? or #"),
        ("s3://bucket/a#hunter2", "without ? or #"),
        ("s3://me:hunter2@bucket/a", "must not contain credentials"),
        ("az://box", "az://CONTAINER/PATH"),
        ("gs://me:hunter2@bucket/a", "GOOGLE_SERVICE_ACCOUNT"),
        ("https://me:hunter2@host/a", "s3://, az://, gs://"),
        ("ftp://host/a", "s3://"),
        (Path("s3://bucket/a"), "as text"),
        (Path("az://box/a"), "Use az://"),
    ],
)
def test_odd_urls_are_refused_without_their_secrets(url, expected):
    with pytest.raises(DataError) as refused:
        parse_path(url)
    message = str(refused.value)
    assert expected in message
    assert "hunter2" not in message
    assert len(message.splitlines()) == 1


def test_objects_are_written_read_and_listed(bucket):
    folder = parse_path(f"{bucket}/deep/folder")
    assert not folder.exists()
    assert list(folder.iterdir()) == []
    (folder / "a").write_bytes(b"one")
    (folder / "b" / "c").write_bytes(b"two")
    assert sorted(folder.iterdir()) == [folder / "a", folder / "b"]
    assert folder.is_dir()
    assert folder.exists()
    assert not folder.is_file()
    assert (folder / "a").is_file()
    assert not (folder / "a").is_dir()
    assert not (folder / "b").is_file()
    assert not parse_path(f"{bucket}/dee").exists()  # the beginning of a name is no folder
    assert (folder / "b" / "c").read_text() == "two"
    with pytest.raises(FileNotFoundError):
        (folder / "d").read_bytes()
    assert (folder / "d").read_object() is None


@pytest.mark.parametrize("name", ODD)
def test_odd_names_come_back(bucket, name):
    path = parse_path(f"{bucket}/{name}/x")
    path.write_bytes(b"content")
    assert path.read_bytes() == b"content"
    assert path.is_file()
    assert path.parent.list_keys() == [path.key]
    assert list(path.parent.iterdir()) == [path]
    path.unlink()
    assert not path.exists()


def test_a_folder_is_copied_and_deleted_whole(bucket):
    folder, copy, beside = (parse_path(f"{bucket}/{name}") for name in ("a", "copy", "ab"))
    names = [*(f"{i:02d}/x" for i in range(40)), "manifest.json"]
    for name in names:
        (folder / name).write_bytes(name.encode())
    (beside / "x").write_bytes(b"")
    folder.copy_tree(copy)
    assert len(copy.list_keys()) == 41
    assert (copy / "27/x").read_bytes() == b"27/x"
    folder.delete_tree()
    assert not folder.exists()
    assert (beside / "x").is_file()
    folder.delete_tree()  # of nothing


def test_the_manifest_goes_first_and_comes_last(faulty_bucket, faulty):
    folder = parse_path(f"{faulty_bucket}/d")
    for name in ("a", "manifest.json", "sub/manifest.json", "z"):
        (folder / name).write_bytes(b"")
    faulty.seen.clear()
    folder.copy_tree(parse_path(f"{faulty_bucket}/e"))
    copied = [request.path for request in faulty.seen if request.method == "PUT"]
    assert {path.rpartition("/")[2] for path in copied[:2]} == {"a", "z"}
    assert all(path.endswith("manifest.json") for path in copied[2:])

    # Google takes one request an object, where others take a list; of two manifests here.
    deletes, batches = 0, 2 if faulty_bucket.startswith("gs:") else 1

    def second_delete(request: ProxyRequest):
        nonlocal deletes
        deletes += request.method in ("POST", "DELETE")
        return DENIED if deletes > batches else None

    faulty.fault = second_delete
    with pytest.raises(DataError):
        folder.delete_tree()
    faulty.fault = lambda request: None
    assert sorted(path.name for path in folder.iterdir()) == ["a", "z"]


def test_an_object_is_made_or_replaced_by_one_alone(bucket):
    path = parse_path(f"{bucket}/claim")
    first = path.create(b"first")
    with pytest.raises(FileExistsError):
        path.create(b"second")
    second = path.write_bytes(b"third", replaces=first)
    with pytest.raises(FileExistsError):
        path.write_bytes(b"fourth", replaces=first)
    assert (path.read_object().content, path.read_object().version) == (b"third", second)
    path.unlink()
    with pytest.raises(FileExistsError):
        path.write_bytes(b"fifth", replaces=second)


def test_a_download_is_the_object(bucket):
    path, content = parse_path(f"{bucket}/large"), bytes(range(256)) * 5000
    path.write_bytes(content)
    file = BytesIO()
    assert path.parent.list_tags() == {path.key: path.download(file)}
    assert file.getvalue() == content


@pytest.mark.parametrize(
    "fault", [THROTTLED, BROKEN, BEFORE, AFTER], ids=["throttled", "broken", "before", "after"]
)
def test_every_request_is_repeated_after_a_failure(faulty_bucket, faulty, fault):
    path = parse_path(f"{faulty_bucket}/a/b")
    path.write_bytes(b"0")  # the bucket was asked for
    faulty.seen.clear()
    faulty.fault = fail_every(2, fault)
    for content in (b"1", b"2", b"3"):
        path.write_bytes(content)
        assert path.read_bytes() == content
        assert list(path.parent.iterdir()) == [path]
        assert path.is_file()
    path.parent.copy_tree(parse_path(f"{faulty_bucket}/c"))
    path.parent.delete_tree()
    assert parse_path(f"{faulty_bucket}/c/b").read_bytes() == b"3"
    assert not path.exists()


def test_an_answer_that_breaks_off_is_asked_for_again(faulty_bucket, faulty):
    """Each request's first answer breaks off; 6 MB are written in parts."""
    content = random.Random(0).randbytes(6 << 20)
    folder, copied = parse_path(f"{faulty_bucket}/a"), parse_path(f"{faulty_bucket}/c")
    assert not folder.exists()  # the bucket was asked for
    broken: set[tuple[str, str]] = set()

    def fault(request: ProxyRequest) -> str | None:
        asked = (request.method, request.path.partition("uploadId=")[0])
        if asked in broken:
            return None
        broken.add(asked)
        return MIDWAY

    faulty.fault = fault
    (folder / "b").write_bytes(content)
    to_buffer = default_buffer_prototype().buffer.from_bytes
    store = folder.open_zarr_store()
    sync(store.set("z", to_buffer(content)))
    sync(store.set_if_not_exists("z", to_buffer(b"other")))
    assert list(folder.iterdir()) == [folder / "b", folder / "z"]
    assert (folder / "b").read_bytes() == (folder / "z").read_bytes() == content
    folder.copy_tree(copied)
    sync(store.delete_dir(""))
    assert not folder.exists()
    assert [(copied / name).read_bytes() == content for name in "bz"] == [True, True]
    copied.delete_tree()
    assert copied.list_keys() == []


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (fail_always((403, "InvalidAccessKeyId")), "InvalidAccessKeyId"),
        (fail_always((403, "SignatureDoesNotMatch")), "SignatureDoesNotMatch"),
        (fail_always(DENIED), "PermissionDenied"),
        (fail_writes(DENIED), "AccessDenied"),
        (fail_always((400, "InvalidBucketName")), "InvalidBucketName"),
        (fail_always((403, "RequestTimeTooSkewed")), "clocks of this machine and the store"),
    ],
    ids=["key", "secret", "denied", "read-only", "bucket name", "clock"],
)
def test_what_the_store_refuses_is_told_at_once(faulty_bucket, faulty, fault: Fault, expected):
    faulty.fault = fault
    path = parse_path(f"{faulty_bucket}/connect/credential")

    def use() -> None:
        path.is_file()
        path.write_bytes(b"")

    with pytest.raises(DataError) as refused:
        use()
    message = str(refused.value)
    assert expected in message
    assert faulty_bucket in message
    assert "a-secret-of-tests" not in message
    assert len(message.splitlines()) == 1
    assert len(faulty.seen) <= 3


def test_who_may_not_read_elsewhere_may_work_below_a_prefix(faulty_bucket, faulty):
    faulty.fault = lambda request: None if "/mine/" in request.path else DENIED
    path = parse_path(f"{faulty_bucket}/mine/a")
    path.write_bytes(b"1")
    assert path.read_bytes() == b"1"


def test_a_missing_bucket_is_told(bucket):
    path = parse_path(f"{bucket}-other/a")
    for use in (path.exists, path.read_bytes, path.list_keys, lambda: path.write_bytes(b"")):
        with pytest.raises(DataError, match=r"(bucket|container) does not exist"):
            use()


@pytest.fixture
def endpoint_variable(store: StoreServer) -> str:
    return object_store.STORE_KINDS[store.scheme].endpoints[0]


def test_an_endpoint_without_a_store_is_told(bucket, endpoint_variable, monkeypatch):
    monkeypatch.setenv(endpoint_variable, "http://127.0.0.1:9")
    object_store.open_bucket.cache_clear()
    with pytest.raises(DataError, match=f"Check {endpoint_variable}"):
        parse_path(f"{bucket}/a").exists()


@pytest.mark.parametrize("endpoint", ["garbage", "ftp://me:hunter2@host", "http://", "//host"])
def test_an_endpoint_that_is_none_is_told(bucket, endpoint_variable, monkeypatch, endpoint):
    monkeypatch.setenv(endpoint_variable, endpoint)
    object_store.open_bucket.cache_clear()
    for use in (parse_path(f"{bucket}/a").exists, lambda: open_dataset(f"{bucket}/a")):
        with pytest.raises(DataError, match=f"{endpoint_variable} must have the form http") as told:
            use()
        assert "hunter2" not in str(told.value)


def test_the_password_of_an_endpoint_is_not_told(
    faulty_bucket, faulty, endpoint_variable, monkeypatch
):
    address = os.environ[endpoint_variable].replace("://", "://me:hunter2@")
    monkeypatch.setenv(endpoint_variable, address)
    object_store.open_bucket.cache_clear()
    faulty.fault = fail_always((418, ""))
    with pytest.raises(DataError, match="418") as told:
        parse_path(f"{faulty_bucket}/a").exists()
    assert "hunter2" not in str(told.value)


# The variables that hold credentials, and the one that says where a machine has its own.
MACHINES = {
    "s3": (("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "AWS_METADATA_ENDPOINT"),
    "az": (("AZURE_STORAGE_ACCOUNT_KEY",), "AZURE_MSI_ENDPOINT"),
    "gs": (("GOOGLE_BEARER_TOKEN",), "GCE_METADATA_HOST"),
}


def test_missing_credentials_are_told(store, faulty_bucket, store_proxy, monkeypatch):
    """The machine is asked for some, at an address that the proxy stands for."""
    proxy, address = store_proxy
    names, machine = MACHINES[store.scheme]
    for name in names:
        monkeypatch.delenv(name)
    monkeypatch.setenv(machine, address.removeprefix("http://" if store.scheme == "gs" else ""))
    proxy.fault = fail_always((403, ""))
    with pytest.raises(DataError, match=f"there are no credentials. Set .*{names[0][:5]}"):
        parse_path(f"{faulty_bucket}/a").exists()
    assert proxy.seen
    assert not any(".latentbits" in request.path for request in proxy.seen)


def test_a_missing_account_is_told(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    object_store.open_bucket.cache_clear()
    for use in (parse_path("az://box/a").exists, lambda: open_dataset("az://box/a")):
        with pytest.raises(DataError, match="Set AZURE_STORAGE_ACCOUNT_NAME and"):
            use()


def test_a_key_that_is_none_is_told(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "hunter2!")
    object_store.open_bucket.cache_clear()
    with pytest.raises(DataError, match=r"Invalid Access Key: .*\d\.$") as told:
        parse_path("az://box/a").exists()
    assert "hunter2" not in str(told.value)


def test_what_obstore_is_needed_for_is_told():
    """In a fresh interpreter that cannot find it; paths need none."""
    program = (
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *a: None if name == 'obstore' else find(name, *a)\n"
        "from storage.stores.locations import parse_path\n"
        "parse_path('a').exists()\n"
        "parse_path('s3://bucket/a')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "DataError: s3://bucket/a needs the package obstore" in done.stderr
    assert "latentbits[stores]" in done.stderr


def test_a_path_is_hashable_and_sorted_like_text():
    paths = [ObjectPath("s3://b", key) for key in ("b", "a/b", "a")]
    assert [path.key for path in sorted(paths)] == ["a", "a/b", "b"]
    assert len({*paths, ObjectPath("s3://b", "a")}) == 3
