//! The head of a request over HTTP/1, as `httparse` reads it.

use super::answer::Answer;

/// Most bytes of a request's line and fields together.
pub(super) const HEAD_BYTES_MAX: usize = 8192;
/// Most fields of a request.
const FIELDS_MAX: usize = 64;

/// Its line, as far as an answer depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub method: &'a str,
    /// Without a query.
    pub path: &'a str,
}

/// The request that `head` begins with; `None` if more is to come, or the answer to what can be none.
pub(super) fn parse(head: &[u8]) -> Result<Option<Request<'_>>, Answer> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {
            let path = request.path.and_then(|target| target.split('?').next());
            Ok(Some(Request { method: request.method.unwrap_or(""), path: path.unwrap_or("") }))
        }
        Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES_MAX => Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            let text =
                format!("a request's head is at most {HEAD_BYTES_MAX} bytes and {FIELDS_MAX} fields\n");
            Err(Answer::text("431 Request Header Fields Too Large", text))
        }
        Err(_) => Err(Answer::text("400 Bad Request", "this is no request of HTTP/1\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &[u8]) -> &'static str {
        parse(head).expect_err("an answer").status
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
        assert_eq!(parse(head).expect("a request"), Some(request), "with another behind it");
        assert_eq!(
            parse(b"HEAD /healthz HTTP/1.0\r\n\r\n").expect("a request").map(|r| r.method),
            Some("HEAD")
        );
    }

    #[test]
    fn head_that_is_too_long_or_none_is_answered() {
        let line = |bytes| [b"GET /".to_vec(), vec![b'a'; bytes]].concat();
        assert_eq!(parse(&line(100)).expect("more"), None);
        assert_eq!(status(&line(HEAD_BYTES_MAX)), "431 Request Header Fields Too Large");
        let fields = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(FIELDS_MAX + 1));
        assert_eq!(status(fields.as_bytes()), "431 Request Header Fields Too Large");
        assert_eq!(status(b"\x16\x03\x01\x02\x00"), "400 Bad Request", "a greeting of TLS");
        assert_eq!(status(b"GET / HTTP/7.0\r\n\r\n"), "400 Bad Request");
    }
}
