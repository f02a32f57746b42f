//! Where things would be fetched from, in words.

use super::{Options, http, pip};

/// The package indexes in order and the certificates that they are checked with, credentials left out;
/// where pip cannot be asked, why.
pub fn index_and_certificates(options: &Options) -> (String, String) {
    match pip::ask(options.python.as_deref()) {
        Ok(sources) => {
            let indexes: Vec<String> = sources.indexes.iter().map(ToString::to_string).collect();
            let certificates = http::roots(sources.settings.cert.as_deref());
            let indexes =
                if indexes.is_empty() { "none (pip has no-index)".to_owned() } else { indexes.join(", ") };
            (indexes, certificates.map_or_else(|e| e.to_string(), |(_, shown)| shown))
        }
        Err(error) => (format!("unknown: {error}"), "unknown".to_owned()),
    }
}
