//! Generates the client and the server of the small gRPC service in `src/grpc.rs`.
//!
//! The service is described here rather than in a `.proto` file, so that building the tests needs
//! no protobuf compiler on the machine.

use tonic_build::manual::{Builder, Method, MethodBuilder, Service};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let echo = Service::builder()
        .name("Echo")
        .package("e2e")
        .comment("Answers what it is told; one method for each of the four kinds.")
        .method(method("once", "Once", "One message, one answer.").build())
        .method(
            method("many", "Many", "One message, many answers.")
                .server_streaming()
                .build(),
        )
        .method(
            method("gather", "Gather", "Many messages, one answer.")
                .client_streaming()
                .build(),
        )
        .method(
            method("chat", "Chat", "Many messages, an answer to each at once.")
                .client_streaming()
                .server_streaming()
                .build(),
        )
        .build();
    Builder::new().compile(&[echo]);
}

fn method(name: &str, route: &str, comment: &str) -> MethodBuilder {
    Method::builder()
        .name(name)
        .route_name(route)
        .comment(comment)
        .input_type("crate::grpc::Say")
        .output_type("crate::grpc::Said")
        .codec_path("tonic_prost::ProstCodec")
}
