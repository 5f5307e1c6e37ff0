# Images of grash, from the metadata in pyproject.toml:
#   docker build --target cpu -t grash .
#   docker build --target cuda -t grash:cuda .         (run with --gpus all)
#   docker build --target serve -t grash:serve .       (grash serve of the model folder /model)
#   docker run --rm -v "$PWD:/work" grash search graph.tsv -o runs/graph
FROM python:3.11-slim AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 NUMBA_CACHE_DIR=/tmp/numba
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src

FROM base AS cuda
# torch for CUDA brings its own triton
RUN sed -i '/^triton/d' constraints.txt && pip install torch==2.13.0 && pip install --constraint constraints.txt '.[parquet]'
WORKDIR /work
ENTRYPOINT ["grash"]
CMD ["--help"]

FROM base AS cpu
RUN pip install --index-url https://download.pytorch.org/whl/cpu torch==2.13.0 \
    && pip install --constraint constraints.txt '.[parquet]'
WORKDIR /work
ENTRYPOINT ["grash"]
CMD ["--help"]

# The server listens on 127.0.0.1 only, so the container needs the network of the machine:
#   docker run --rm --network host -v "$PWD/runs/graph:/model" grash:serve
FROM cpu AS serve
WORKDIR /source
RUN pip install --constraint constraints.txt '.[parquet,serve]'
WORKDIR /work
CMD ["serve", "/model"]
