//! An HTTP/1 response. Each closes its connection.

const TEXT: &str = "text/plain; charset=utf-8";

/// Status, type and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub status: &'static str,
    pub kind: &'static str,
    pub body: String,
}

impl Response {
    /// Plain text.
    pub fn text(status: &'static str, body: impl Into<String>) -> Response {
        Response { status, kind: TEXT, body: body.into() }
    }

    /// The encoded response; without its body for `HEAD`.
    pub fn bytes(&self, has_body: bool) -> Vec<u8> {
        let (status, kind, length) = (self.status, self.kind, self.body.len());
        let fields =
            format!("Content-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close");
        let allow = if status.starts_with("405") { "\r\nAllow: GET, HEAD" } else { "" };
        let body = if has_body { &*self.body } else { "" };
        format!("HTTP/1.1 {status}\r\n{fields}{allow}\r\n\r\n{body}").into_bytes()
    }
}
