# Two images: `gpu-share` (the last and default target) holds webhook, enforcer, sidecar, certificates and the command line;
# `simulator` is the same with the driver and the tenant of GPUs that do not exist.
#
#   docker build -t gpu-share:0.1.0 .
#   docker build -t gpu-share-simulator:0.1.0 --target simulator .
#   buildah bud --build-arg BASE=<any Debian-like image with python3 >= 3.11 and python3-venv> -t gpu-share:0.1.0 .
#
# Dependencies come from requirements.txt, pinned and hashed. It omits what libraries ask for and nothing here imports, hence
# --no-deps. The project itself is built without a network. Only the virtual environment reaches the result: no compiler, no
# pip, no cache, no sources, no tests.
#
# The base is pinned by the digest of its index, for all platforms; `docker buildx imagetools inspect python:3.12-slim` prints
# the newest.
ARG BASE=docker.io/library/python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
RUN python3 -m venv /opt/tools && python3 -m venv --without-pip /opt/gpu-share
WORKDIR /src
COPY requirements.txt requirements-dev.txt ./
# The build tool stays behind in this stage, pinned and hashed like the rest.
RUN awk '/^[a-z]/ {keep = /^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/} keep' requirements-dev.txt \
      > build-tool.txt \
 && /opt/tools/bin/pip install --require-hashes -r build-tool.txt \
 && /opt/tools/bin/pip --python /opt/gpu-share/bin/python install --require-hashes --no-deps --no-compile -r requirements.txt
# The Kubernetes client reads kubeconfigs and runs commands in pods here. Nothing imports its typed models and calls, nor the
# asynchronous copy of all of it; the client itself imports a model only where somebody names it.
RUN cd /opt/gpu-share/lib/python3*/site-packages/kubernetes && rm -r aio client/api client/models/[a-z]*.py \
 && find /opt/gpu-share/lib -type d \( -name tests -o -name test \) -prune -exec rm -r {} + \
 && find /opt/gpu-share/lib -name example.py -delete
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY gpushare gpushare
COPY gpushare_cli gpushare_cli
COPY webhook webhook
COPY enforcer enforcer
COPY sidecar sidecar
COPY certs certs
RUN /opt/tools/bin/pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/tools/bin/pip --python /opt/gpu-share/bin/python install --no-index --no-deps --no-compile /wheels/*.whl
# Containers cannot write bytecode, and base images come without that of Python's own library: what is missing here is
# compiled at every start. Without docstrings and asserts, which nothing here relies on, each process is 2 MiB smaller.
RUN PYTHONPYCACHEPREFIX=/opt/gpu-share/bytecode /opt/gpu-share/bin/python -m compileall -q -j 0 -o 2 \
      --invalidation-mode unchecked-hash \
      -x '/(test|tests|idlelib|lib2to3|ensurepip|pydoc_data|tkinter|turtledemo)/|dist-packages/' \
      "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" /opt/gpu-share/lib

# The simulated driver's library, compiled.
FROM ${BASE} AS fake
RUN command -v cc gcc || { apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev; }
WORKDIR /opt/gpu-share-simulator
ENV PYTHONDONTWRITEBYTECODE=1
COPY tests/__init__.py tests/__init__.py
COPY tests/fakes tests/fakes
RUN python3 -m tests.fakes.gpu.build tests/fakes/gpu/lib && rm -f tests/fakes/gpu/*.c tests/fakes/gpu/*.h

FROM ${BASE} AS product
COPY --from=build /opt/gpu-share /opt/gpu-share
ENV PATH=/opt/gpu-share/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    PYTHONPYCACHEPREFIX=/opt/gpu-share/bytecode PYTHONOPTIMIZE=2
# Nothing here changes its user, so no program of the base image may.
RUN find / -xdev -type f -perm /6000 -exec chmod a-s {} +
# A number, so that runAsNonRoot can be checked. The enforcer's manifest asks for root by itself.
USER 65532:65532

FROM product AS simulator
LABEL org.opencontainers.image.title="gpu-share-simulator" \
      org.opencontainers.image.description="gpu-share with the driver of GPUs that do not exist" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=fake /opt/gpu-share-simulator /opt/gpu-share-simulator
# The last one stands for what an image says to a framework: the driver's value replaces it in containers with a share.
ENV PATH=/opt/gpu-share-simulator/tests/fakes/gpu/bin:$PATH TF_FORCE_GPU_ALLOW_GROWTH=image
ENTRYPOINT ["gpu-share-simulator"]

FROM product AS gpu-share
LABEL org.opencontainers.image.title="gpu-share" \
      org.opencontainers.image.description="Several pods share one NVIDIA GPU, with limits that are checked and kills that are on the record" \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["gpu-share"]
