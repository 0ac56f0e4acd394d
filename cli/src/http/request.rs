//! Parsing of the head of an HTTP/1 request, with `httparse`.

use super::response::Response;

/// Maximum bytes of the request line and the header fields together.
pub(super) const HEAD_BYTES_MAX: usize = 8192;
/// Maximum header fields of a request.
const FIELDS_MAX: usize = 64;

/// The parts of the request line on which a response depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub method: &'a str,
    /// Without a query.
    pub path: &'a str,
}

/// The request at the start of `head`; `None` if it is incomplete, or the error response if it is
/// invalid.
pub(super) fn parse(head: &[u8]) -> Result<Option<Request<'_>>, Response> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {
            let path = request.path.and_then(|target| target.split('?').next());
            Ok(Some(Request { method: request.method.unwrap_or(""), path: path.unwrap_or("") }))
        }
        Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES_MAX => Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            let text = format!(
                "a request head has at most {HEAD_BYTES_MAX} bytes and {FIELDS_MAX} fields\n"
            );
            Err(Response::text("431 Request Header Fields Too Large", text))
        }
        Err(_) => Err(Response::text("400 Bad Request", "not an HTTP/1 request\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &[u8]) -> &'static str {
        parse(head).expect_err("an error response").status
    }

    #[test]
    fn request_is_complete_with_its_last_field() {
        let head = b"GET /metrics?name=x HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz";
        let end = head.len() - "GET /healthz".len();
        for cut in 0..end {
            assert_eq!(parse(&head[..cut]).expect("more"), None, "cut={cut}");
        }
        let request = Request { method: "GET", path: "/metrics" };
        assert_eq!(parse(&head[..end]).expect("a request"), Some(request));
        assert_eq!(parse(head).expect("a request"), Some(request), "followed by another request");
        assert_eq!(
            parse(b"HEAD /healthz HTTP/1.0\r\n\r\n").expect("a request").map(|r| r.method),
            Some("HEAD")
        );
    }

    #[test]
    fn invalid_head_gets_an_error_response() {
        let line = |bytes| [b"GET /".to_vec(), vec![b'a'; bytes]].concat();
        assert_eq!(parse(&line(100)).expect("more"), None);
        assert_eq!(status(&line(HEAD_BYTES_MAX)), "431 Request Header Fields Too Large");
        let fields = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(FIELDS_MAX + 1));
        assert_eq!(status(fields.as_bytes()), "431 Request Header Fields Too Large");
        assert_eq!(status(b"\x16\x03\x01\x02\x00"), "400 Bad Request", "a TLS handshake");
        assert_eq!(status(b"GET / HTTP/7.0\r\n\r\n"), "400 Bad Request");
    }
}
