# The service `blackboard serve`, from the wheels of this checkout: docs/operations.md.
#
#   docker build --tag blackboard .
#
# A release takes the wheels that it publishes in place of the stage `wheels`:
#
#   docker buildx build --build-context wheels=dist/python .

FROM python:3.13.15-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS build
WORKDIR /source
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt hatchling
COPY . .
WORKDIR /source/clients/python
RUN python -m hatchling build -t wheel -d /wheels
WORKDIR /source
RUN python -m hatchling build -t wheel -d /wheels

FROM scratch AS wheels
COPY --from=build /wheels/ /

FROM python:3.13.15-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS install
COPY constraints.txt /
# Wheels alone: what had to be compiled would need a compiler, and would differ from build to build.
RUN --mount=type=bind,from=wheels,target=/wheels \
    python -m venv /app \
    && /app/bin/pip install --no-cache-dir --only-binary :all: --constraint /constraints.txt \
        "$(echo /wheels/agent_blackboard-*.whl)[fast,postgresql]" /wheels/agent_blackboard_client-*.whl \
    && /app/bin/pip uninstall --yes pip

FROM python:3.13.15-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
# By number, so that Kubernetes' runAsNonRoot can see that it is not root. A new volume takes the owner
# and the rights of the folder on which it is mounted.
RUN groupadd --gid 65532 blackboard \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /var/lib/blackboard blackboard \
    && install --directory --owner 65532 --group 65532 --mode 700 /var/lib/blackboard \
    && install --directory --owner 65532 --group 65532 --mode 755 /run/keys
COPY --from=install /app /app
COPY deploy/image/ /app/image/
ENV PATH=/app/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    BLACKBOARD_HOST=0.0.0.0 \
    BLACKBOARD_PORT=7420 \
    BLACKBOARD_DATA=/var/lib/blackboard \
    BLACKBOARD_CONFIG_DIR=/var/lib/blackboard/contexts
USER 65532:65532
WORKDIR /var/lib/blackboard
VOLUME /var/lib/blackboard
EXPOSE 7420
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --start-interval=1s --retries=3 \
    CMD ["python", "/app/image/health.py"]
ENTRYPOINT ["/bin/sh", "/app/image/entry.sh"]
CMD ["serve"]
