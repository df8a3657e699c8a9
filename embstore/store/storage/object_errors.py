"""What an object store's client says when it fails, told in one line that never holds a credential."""

from __future__ import annotations

import os
import re

from embstore.errors import EmbstoreError, StorageError, StoreDamagedError, StoreNotFoundError
from embstore.store.storage.files import MEND

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS; GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or another credential",
}
_NO_BUCKET = re.compile(r"NoSuchBucket|bucket does not exist|ContainerNotFound|container does not exist", re.I)
_OTHER_REGION = re.compile(
    r"AuthorizationHeaderMalformed|PermanentRedirect|IllegalLocationConstraint|redirect without LOCATION|code: 301"
)
_NAMED_REGION = re.compile(r"expecting '([a-z0-9-]+)'|<Region>([a-z0-9-]+)</Region>|x-amz-bucket-region\W+([a-z0-9-]+)")
_STATUS = re.compile(r"status code: (\d{3})(?: ([A-Za-z ]+))?")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_RETRIES = re.compile(r"after (\d+) retries")
_CONNECTION = (
    ("ConnectionRefused", "connection refused"),
    ("dns error", "its name cannot be resolved"),
    ("certificate", "its certificate is not valid"),
    ("TimedOut", "no answer in time"),
    ("timed out", "no answer in time"),
)
_INSTANCE = re.compile(r"169\.254\.|metadata\.google\.internal|fd00:ec2")
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|CREDENTIAL|PASSWORD|SIGNATURE|SAS", re.I)


def told(error: Exception, verb: str, url: str) -> EmbstoreError:
    """Return the error to raise for what the client raised as it should `verb` (read, write ...) the object `url`."""
    text = str(error)
    scheme = url.partition("://")[0]
    status = _STATUS.search(text)
    number = int(status[1]) if status else 0
    code = _CODE.search(text)
    answer = " ".join(
        [*(status[0].removeprefix("status code: ").split() if status else ()), *(code.groups() if code else ())]
    )
    kind = type(error).__name__
    if _NO_BUCKET.search(text):
        return StoreNotFoundError(f"there is no bucket {bucket_of(url)!r} for {url}: check the name and the endpoint")
    if _OTHER_REGION.search(text) or number == 301:
        return StorageError(f"cannot {verb} {url}: its bucket is in another region{_region(text)}")
    if _INSTANCE.search(text):
        return StorageError(f"cannot {verb} {url}: there are no credentials in the environment: set {_names(scheme)}")
    if verb == "open":  # no request was made: what the environment says is not enough to make one
        return StorageError(f"cannot {verb} {url}: {cleaned(text)}; set {_names(scheme)}")
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or number in (401, 403):
        return StorageError(f"cannot {verb} {url}: no right to do so ({answer or 'refused'}); check {_checked(scheme)}")
    if kind == "NotSupportedError" and "ange" in text:
        return StorageError(f"cannot {verb} {url}: the server gives no parts of files, which reading rows needs")
    if number == 416:
        return StoreDamagedError(f"{url} is cut short: {MEND}")
    if number >= 500 or number in (408, 429):
        return StorageError(f"cannot {verb} {url}: the server answers {answer}{_tries(text)}; try again later")
    if "BadScheme" in text:
        return StorageError(
            f"cannot {verb} {url}: its endpoint is http://, not https://; AWS_ALLOW_HTTP=true allows it"
        )
    if not status and ("error sending request" in text or "HTTP error" in text):
        return StorageError(f"cannot {verb} {url}: the server cannot be reached, {_reason(text)}{_tries(text)}")
    reason = f"the server answers {answer}" if answer else cleaned(text)
    return StorageError(f"cannot {verb} {url}: {reason}")


def bucket_of(url: str) -> str:
    """Return the bucket, container or host of a URL."""
    return url.partition("://")[2].partition("/")[0]


def cleaned(text: str) -> str:
    """Return the first line of a message without query strings, user names of URLs and values of secret variables."""
    line = text.splitlines()[0] if text else "no reason given"
    line = re.sub(r"(\w+://)[^\s/@]*@", r"\1", line)
    line = re.sub(r"\?\S*", "", line)
    for name, value in os.environ.items():
        if len(value) >= 4 and _SECRET_NAME.search(name):
            line = line.replace(value, "***")
    return line[:300]


def _names(scheme: str) -> str:
    return _CREDENTIALS.get(scheme, "nothing: credentials are not sent over https://")


def _checked(scheme: str) -> str:
    if scheme not in _CREDENTIALS:
        return "that it is public: credentials are not sent over https://"
    return f"the environment's {_names(scheme)}"


def _region(text: str) -> str:
    named = _NAMED_REGION.search(text)
    is_in = f" ({next(group for group in named.groups() if group)})" if named else ""
    given = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return f"{is_in} than AWS_REGION says ({given or 'not set: us-east-1'}); set AWS_REGION to the bucket's"


def _tries(text: str) -> str:
    retries = _RETRIES.search(text)
    return f", {int(retries[1]) + 1} tries" if retries else ""


def _reason(text: str) -> str:
    return next((reason for sign, reason in _CONNECTION if sign in text), "the connection is lost")
