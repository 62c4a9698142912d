"""Writes the wheel mnnkv-llama: wheel.py VERSION PLATFORM LIBRARIES FOLDER. Prints its path.

LIBRARIES: a folder with ggml-<N>/libggml-mnnkv.so. PLATFORM: such as manylinux_2_34_x86_64. The bytes depend on those of the files,
and on SOURCE_DATE_EPOCH.
"""

import base64
import hashlib
import os
import pathlib
import sys
import time
import zipfile

version, platform, libraries, folder = sys.argv[1:]
source = pathlib.Path(__file__).parent.parent
package = source / "integrations/llama.cpp/python/mnnkv_llama"
date = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
info = f"mnnkv_llama-{version}.dist-info"

files = {f"mnnkv_llama/{file.name}": file.read_bytes() for file in sorted(package.glob("*.py"))}
backends = sorted(pathlib.Path(libraries).glob("ggml-*/libggml-mnnkv.so"))
if not backends:
    sys.exit(f"wheel: {libraries} has no ggml-<N>/libggml-mnnkv.so")
files |= {f"mnnkv_llama/{file.parent.name}/{file.name}": file.read_bytes() for file in backends}
files |= {f"{info}/licenses/{name}": (source / name).read_bytes() for name in ("LICENSE", "THIRD-PARTY.md")}
description = (package / "__init__.py").read_text(encoding="utf-8").split('"""')[1]
files[f"{info}/METADATA"] = f"""Metadata-Version: 2.4
Name: mnnkv-llama
Version: {version}
Summary: Attention of decodes by mnn-kv for llama-cpp-python on a CPU
License-Expression: Apache-2.0
License-File: LICENSE
License-File: THIRD-PARTY.md
Requires-Python: >=3.8
Description-Content-Type: text/plain

{description}""".encode()
files[f"{info}/WHEEL"] = f"""Wheel-Version: 1.0
Generator: mnn-kv
Root-Is-Purelib: false
Tag: py3-none-{platform}
""".encode()
record = f"{info}/RECORD"
lines = []
for name, data in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    lines.append(f"{name},sha256={digest},{len(data)}\n")
files[record] = "".join([*lines, f"{record},,\n"]).encode()

path = pathlib.Path(folder) / f"mnnkv_llama-{version}-py3-none-{platform}.whl"
with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
    for name, data in files.items():
        entry = zipfile.ZipInfo(name, date)
        entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        wheel.writestr(entry, data)
print(path)
