# One image for every part: webhook, enforcer, sidecar, certs.
#
#   docker build -t gpu-share:0.1.0 .
#   buildah bud --build-arg BASE=<any Debian-like image with python3 >= 3.11 and python3-venv> -t gpu-share:0.1.0 .
#
# Dependencies come from requirements.txt, pinned and hashed; the project itself is built without a network. Only the
# virtual environment reaches the last stage: no compiler, no pip cache, no sources, no tests.
ARG BASE=docker.io/library/python:3.12-slim

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
RUN python3 -m venv /opt/tools && python3 -m venv --without-pip /opt/gpu-share
WORKDIR /src
COPY requirements.txt requirements-dev.txt ./
# The build tool stays behind in this stage, pinned and hashed like the rest.
RUN awk '/^[a-z]/ {keep = /^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/} keep' requirements-dev.txt \
      > build-tool.txt \
 && /opt/tools/bin/pip install --require-hashes -r build-tool.txt \
 && /opt/tools/bin/pip --python /opt/gpu-share/bin/python install --require-hashes --no-compile -r requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY gpushare gpushare
COPY webhook webhook
COPY enforcer enforcer
COPY sidecar sidecar
COPY certs certs
RUN /opt/tools/bin/pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/tools/bin/pip --python /opt/gpu-share/bin/python install --no-index --no-deps --no-compile /wheels/*.whl \
 && /opt/gpu-share/bin/python -m compileall -q -j 0 /opt/gpu-share/lib

FROM ${BASE}
COPY --from=build /opt/gpu-share /opt/gpu-share
ENV PATH=/opt/gpu-share/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A number, so that runAsNonRoot can be checked. The enforcer's manifest asks for root by itself.
USER 65532:65532
ENTRYPOINT ["gpu-share"]
