//! A platform client that speaks HTTP/2 as the `h2` crate does.

use bytes::Bytes;
use h2::{RecvStream, client::SendRequest};
use http::{HeaderMap, Request, Response};
use testkit::{deadline::soon, http1::Duplex};
use tunnel_ops::task::Owned;

use crate::rig::{PROD_HOST, Rig, connect};

/// One connection; it ends when this is dropped.
pub(crate) struct Http2 {
    pub(crate) send: SendRequest<Bytes>,
    pub(crate) connection: Owned<Result<(), h2::Error>>,
}

impl Http2 {
    pub(crate) async fn new(rig: &Rig) -> Self {
        Self::over(connect(rig.addresses.public).await).await
    }

    /// One that gives streams no window, and so reads nothing of any content.
    pub(crate) async fn reading_nothing(rig: &Rig) -> Self {
        Self::with_window(rig, 0).await
    }

    /// One that gives each stream such a window.
    pub(crate) async fn with_window(rig: &Rig, bytes: u32) -> Self {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(bytes);
        // Streams that are not read do not stop those that are.
        builder.initial_connection_window_size(16 * 1024 * 1024);
        Self::with(builder, connect(rig.addresses.public).await).await
    }

    pub(crate) async fn over(io: impl Duplex + 'static) -> Self {
        Self::with(h2::client::Builder::new(), io).await
    }

    async fn with(mut builder: h2::client::Builder, io: impl Duplex + 'static) -> Self {
        builder
            .max_header_list_size(1024 * 1024)
            .initial_max_send_streams(1_000);
        let (send, mut connection) = builder.handshake(io).await.unwrap();
        let mut pings = connection.ping_pong().unwrap();
        let connection = Owned::spawn("http2", connection);
        // After a ping has come back, the other end's settings are known.
        soon("a pong", pings.ping(h2::Ping::opaque()))
            .await
            .unwrap();
        Self { send, connection }
    }

    /// Sends a request without a body.
    pub(crate) async fn ask(
        &mut self,
        request: Request<()>,
    ) -> Result<Response<RecvStream>, h2::Error> {
        let send = self.send.clone();
        let mut send = soon("a place for a stream", send.ready()).await?;
        soon("a response", send.send_request(request, true)?.0).await
    }
}

/// A request without a body.
pub(crate) fn get(path: &str) -> Request<()> {
    Request::get(format!("http://{PROD_HOST}{path}"))
        .body(())
        .unwrap()
}

/// Reads a body to its end: content and trailers.
pub(crate) async fn read(mut body: RecvStream) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
    let mut content = Vec::new();
    soon("a body", async {
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            content.extend_from_slice(&data);
        }
        Ok((content, body.trailers().await?))
    })
    .await
}
