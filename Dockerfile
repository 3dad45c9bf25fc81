# Canopy, compiled, without root. The steps are those of `make run`: the environment script, then the command.
#
#   docker build -t canopy .
#   docker run --init -p 1883:1883 canopy
#   docker run --init -p 1883:1883 -v ./canopy.toml:/etc/canopy.toml:ro canopy serve --config /etc/canopy.toml
#
#   docker run --init -p 1883:1883 -v canopy-store:/var/lib/canopy canopy serve --listen mqtt://0.0.0.0:1883 \
#       --store /var/lib/canopy/store
#   docker run --init -p 1883:1883 -v canopy-record:/var/lib/canopy canopy serve --listen mqtt://0.0.0.0:1883 \
#       --set recorder.directory=/var/lib/canopy/record
#
# Settings may also come as CANOPY_ variables: -e CANOPY_LIMITS__MAX_CONNECTIONS=10000.

FROM python:3.13-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/canopy
COPY pyproject.toml setup.py uv.lock README.md LICENSE ./
COPY .ci/environment .ci/environment
COPY broker broker
COPY canopy_delta canopy_delta
COPY canopy_pages canopy_pages
COPY canopy_spark canopy_spark
COPY loadtest loadtest
COPY pipeline pipeline
COPY config/default.toml config/default.toml
COPY config/load config/load
# An interpreted core is not what this image promises: a build that cannot compile it fails.
RUN CANOPY_REQUIRE_COMPILED=1 PYTHON=python3.13 .ci/environment run

FROM python:3.13-slim-bookworm
RUN useradd --system --no-create-home --shell /usr/sbin/nologin canopy \
    && install --directory --owner canopy /var/lib/canopy
# The same path as in the build: the environment's scripts name it.
COPY --from=build /opt/canopy/.venv /opt/canopy/.venv
ENV PATH=/opt/canopy/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER canopy
WORKDIR /
EXPOSE 1883
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=6s --start-period=5s CMD ["canopy", "health", "--timeout", "5"]
ENTRYPOINT ["canopy"]
# A container is reached through its own address: the loopback default would serve nobody.
CMD ["serve", "--listen", "mqtt://0.0.0.0:1883"]
