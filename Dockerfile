# docker buildx build --platform linux/amd64,linux/arm64 -t REGISTRY/cedargate:VERSION --push .
# glibc, not musl: Cedar's stack checks fail at random there (cedar-policy/cedar issue 1814).
ARG RUST=1.95
FROM rust:${RUST}-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package cli

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/release/cedargate /usr/local/bin/cedargate
COPY --from=build /src/LICENSE /LICENSE
USER 65532:65532
EXPOSE 8443
ENTRYPOINT ["/usr/local/bin/cedargate"]
CMD ["serve"]
