//! The ACME client's requests, by the server's own HTTP client.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use parking_lot::Mutex;

use tunnel_ops::https::HttpsClient;

/// Most bytes of an answer: a directory or a chain has some 10 KB.
const ANSWER_BYTES: usize = 256 * 1024;

/// Longest time that an ACME server's `Retry-After` counts for.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The requests of one order.
#[derive(Clone)]
pub(super) struct AcmeHttp {
    client: HttpsClient,
    retry_at: Arc<Mutex<Option<SystemTime>>>,
}

impl AcmeHttp {
    pub(super) fn new(client: HttpsClient) -> Self {
        Self {
            client,
            retry_at: Arc::default(),
        }
    }

    /// When the ACME server wants to be asked again, if it has refused something for now.
    pub(super) fn retry_at(&self) -> Option<SystemTime> {
        *self.retry_at.lock()
    }

    async fn exchange(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Error> {
        let (head, content) = request.into_parts();
        let content = match content.collect().await {
            Ok(content) => content.to_bytes(),
            Err(never) => match never {},
        };
        let request = Request::from_parts(head, Full::new(content));
        let answer = self.client.exchange(request, ANSWER_BYTES).await;
        let answer = answer.map_err(|error| Error::Other(Box::new(error)))?;
        if let Some(at) = retry_at(&answer, SystemTime::now()) {
            *self.retry_at.lock() = Some(at);
        }
        Ok(answer.map(Full::new).into())
    }
}

/// When a refused request may be repeated, if the answer says so (RFC 9110 section 10.2.3).
fn retry_at<T>(answer: &Response<T>, now: SystemTime) -> Option<SystemTime> {
    let refusals = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    if !refusals.contains(&answer.status()) {
        return None;
    }
    let value = answer.headers().get(RETRY_AFTER)?.to_str().ok()?.trim();
    let at = match value.parse::<u64>() {
        Ok(seconds) => now + Duration::from_secs(seconds).min(LONGEST_WAIT),
        Err(_) => httpdate::parse_http_date(value).ok()?,
    };
    Some(at.min(now + LONGEST_WAIT))
}

impl HttpClient for AcmeHttp {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        Box::pin(self.clone().exchange(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_now_says_when_to_ask_again() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let answer = |status: u16, after: &str| {
            let answer = Response::builder()
                .status(status)
                .header(RETRY_AFTER, after);
            retry_at(&answer.body(()).unwrap(), now)
        };
        assert_eq!(answer(429, "90"), Some(now + Duration::from_secs(90)));
        assert_eq!(answer(503, "99999999999"), Some(now + LONGEST_WAIT));
        let date = httpdate::fmt_http_date(now + Duration::from_secs(7));
        assert_eq!(answer(503, &date), Some(now + Duration::from_secs(7)));
        assert_eq!(answer(200, "90"), None, "an order in progress");
        assert_eq!(answer(429, "soon"), None);
    }
}
