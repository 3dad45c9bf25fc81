# Canopy from its wheel, compiled, without root; it writes nowhere but to /var/lib/canopy. For amd64 and arm64:
#
#   docker build -t canopy .
#   docker build -t canopy --build-arg EXTRAS="record postgresql" .    # with databases as stores
#   docker buildx build --platform linux/amd64,linux/arm64 -t registry.example.org/canopy --push .
#
#   docker run --init -p 1883:1883 canopy
#   docker run --init -p 1883:1883 --read-only --tmpfs /tmp --cap-drop ALL canopy
#   docker run --init -p 1883:1883 -v ./canopy.toml:/etc/canopy/canopy.toml:ro canopy serve -c /etc/canopy/canopy.toml
#
#   docker run --init -p 1883:1883 -v canopy-store:/var/lib/canopy canopy serve --listen mqtt://0.0.0.0:1883 \
#       --store /var/lib/canopy/store
#   docker run --init -p 1883:1883 -v canopy-record:/var/lib/canopy canopy serve --listen mqtt://0.0.0.0:1883 \
#       --set recorder.directory=/var/lib/canopy/record
#
# Settings may also come as CANOPY_ variables: -e CANOPY_LIMITS__MAX_CONNECTIONS=10000. Every setting with its default and
# its reason: docker run canopy check-config --defaults, or /etc/canopy/default.toml. Where it listens elsewhere than on
# mqtt://127.0.0.1:1883, tell the health check: -e CANOPY_HEALTH_TARGET=mqtts://127.0.0.1:8883, CANOPY_HEALTH_USER, ….

# Messages cost less CPU on Python 3.11 than on 3.12 and 3.13 (docs/benchmarks.md).
FROM python:3.11-slim-bookworm AS wheel
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE ./
COPY broker broker
COPY loadtest loadtest
COPY pipeline pipeline
COPY config config
# An interpreted core is not what this image promises: a build that cannot compile it fails.
RUN CANOPY_REQUIRE_COMPILED=1 pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.11-slim-bookworm AS installed
WORKDIR /src
COPY pyproject.toml uv.lock ./
ARG EXTRAS=record
# What is locked, by its hashes.
RUN pip install --no-cache-dir 'uv>=0.9,<1' \
    && uv export --quiet --frozen --no-emit-project --no-default-groups $(printf -- '--extra %s ' $EXTRAS) \
        --output-file requirements.txt \
    && python -m venv /opt/canopy \
    && /opt/canopy/bin/pip install --no-cache-dir --require-hashes --requirement requirements.txt
COPY --from=wheel /dist /dist
RUN /opt/canopy/bin/pip install --no-cache-dir --no-deps /dist/*.whl

FROM python:3.11-slim-bookworm
# By number: Kubernetes has to see that it is not root.
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin canopy \
    && install --directory --owner canopy --mode 0700 /var/lib/canopy
# The same path as in the build: the scripts of the environment name it.
COPY --from=installed /opt/canopy /opt/canopy
COPY config/default.toml /etc/canopy/default.toml
ENV PATH=/opt/canopy/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /
VOLUME /var/lib/canopy
EXPOSE 1883
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=6s --start-period=5s CMD ["canopy", "health", "--timeout", "5"]
ENTRYPOINT ["canopy"]
# A container is reached through its own address: the loopback default would serve nobody.
CMD ["serve", "--listen", "mqtt://0.0.0.0:1883"]
