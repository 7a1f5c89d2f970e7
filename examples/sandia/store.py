#!/usr/bin/python3
"""store.py get|put BUCKET KEY FILE: one object of an S3 store, with nothing but Python's standard library.

Address, region and keys of the store are in store.json beside this file, mode 0600. `aws s3 cp` and `rclone copyto` do the same.
Exits with 75 if the store does not answer or says no.
"""

import hashlib
import hmac
import json
import mimetypes
import os
import sys
import time
import urllib.request
from urllib.parse import quote, urlsplit


def sign(config, method, path, host, digest):
    """Headers of a request: Signature Version 4, as S3 describes it under "Authenticating Requests"."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    signed = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": moment}
    names = ";".join(signed)
    lines = ["{}:{}\n".format(name, value) for name, value in signed.items()]
    request = "\n".join([method, path, "", "".join(lines), names, digest])
    scope = [moment[:8], config["region"], "s3", "aws4_request"]
    key = ("AWS4" + config["secret_key"]).encode()
    for part in scope:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    hashed = hashlib.sha256(request.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", moment, "/".join(scope), hashed])
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = "/".join([config["access_key"]] + scope)
    signed["authorization"] = "AWS4-HMAC-SHA256 Credential={}, SignedHeaders={}, Signature={}".format(credential, names, signature)
    return signed


def ask(config, method, bucket, key, body=None):
    path = "/{}/{}".format(bucket, quote(os.fsencode(key), safe="/~"))
    digest = hashlib.sha256(body or b"").hexdigest()
    headers = sign(config, method, path, urlsplit(config["store"]).netloc, digest)
    if body is not None:
        headers["content-type"] = mimetypes.guess_type(key)[0] or "application/octet-stream"
    request = urllib.request.Request(config["store"] + path, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def main(verb, bucket, key, path):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "store.json"), encoding="utf-8") as file:
        config = json.load(file)
    body = None
    if verb == "put":
        with open(path, "rb") as file:
            body = file.read()
    for wait in [1, 2, None]:
        try:
            answer = ask(config, verb.upper(), bucket, key, body)
            break
        except OSError as error:
            print("{}/{}: {}".format(bucket, key, error), file=sys.stderr)
            if wait is None:
                sys.exit(75)
            time.sleep(wait)
    if verb == "get":
        with open(path, "wb") as file:
            file.write(answer)


main(*sys.argv[1:])
