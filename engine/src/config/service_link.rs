//! Recognises the variables that Kubernetes sets in every container for a Service named `pagelith`
//! or `pagelith-...`. They are not settings.

/// Whether a variable has the shape of a service link: `..._SERVICE_HOST`, `..._SERVICE_PORT` (and
/// `_` and a port's name), `..._PORT=tcp://HOST:PORT`, `..._PORT_7411_TCP` (and `_PROTO`, `_PORT`
/// or `_ADDR`). `name` is without its prefix.
pub(super) fn is_service_link(name: &str, value: &str) -> bool {
    let url = || value.contains("://");
    let number = || value.parse::<u16>().is_ok();
    // Any text before `end` is the rest of the Service's name, after `pagelith-`.
    let ends = |end: &str| name == end || name.ends_with(&format!("_{end}"));
    ends("SERVICE_HOST") && !value.is_empty()
        || (ends("SERVICE_PORT") || named_port(name)) && number()
        || ends("PORT") && url()
        || one_port(name).is_some_and(|rest| match rest {
            "" => url(),
            "_PROTO" => PROTOCOLS.iter().any(|known| known.eq_ignore_ascii_case(value)),
            "_PORT" => number(),
            "_ADDR" => !value.is_empty(),
            _ => false,
        })
}

const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// Whether the name is `SERVICE_PORT_NAME`, with any text before it.
fn named_port(name: &str) -> bool {
    let at_start = name.strip_prefix("SERVICE_PORT_");
    at_start
        .or_else(|| name.split_once("_SERVICE_PORT_").map(|(_, port)| port))
        .is_some_and(|port| !port.is_empty())
}

/// The text after `PORT_7411_TCP`, which may have any text before it.
fn one_port(name: &str) -> Option<&str> {
    let starts =
        name.match_indices("PORT_").filter(|(at, _)| *at == 0 || name[..*at].ends_with('_'));
    starts.into_iter().find_map(|(at, port)| {
        let rest = &name[at + port.len()..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = rest.split_at(digits);
        number.parse::<u16>().ok()?;
        let rest = rest.strip_prefix('_')?;
        PROTOCOLS.iter().find_map(|protocol| rest.strip_prefix(protocol))
    })
}
