//! Which requests are answered: those of this machine's user, who has the address with the token.

use subtle::ConstantTimeEq;

/// Bytes of a token: nobody can guess 256 bits.
const BYTES: usize = 32;

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Nothing can be written.
    Method,
    /// A page of another site, whose name now points to this machine, asks in the user's browser.
    Host,
    Token,
}

impl Refused {
    pub(super) const fn status(self) -> u16 {
        match self {
            Self::Method => 405,
            Self::Host => 421,
            Self::Token => 403,
        }
    }

    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Method => "only GET is answered\n",
            Self::Host => "this is not the host that was asked for\n",
            Self::Token => {
                "the address lacks its token: open the one that `veilgrad serve` printed\n"
            }
        }
    }
}

/// The address of a server: its port, and the token that requests must begin with.
pub(super) struct Guard {
    port: u16,
    token: String,
}

impl Guard {
    /// A guard with a new token from the operating system.
    pub(super) fn new(port: u16) -> Result<Self, getrandom::Error> {
        random_hex().map(|token| Self { port, token })
    }

    /// The address of the page.
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.token)
    }

    /// The part of the target after the token: path and query. `hosts` are all Host headers of the request.
    ///
    /// # Errors
    /// When the method, the host or the token is another one. The time does not depend on where tokens differ.
    pub(super) fn check<'a>(
        &self,
        method: &str,
        hosts: &[&str],
        target: &'a str,
    ) -> Result<&'a str, Refused> {
        let is_here = |host: &str| {
            host.rsplit_once(':').is_some_and(|(name, port)| {
                let name_is_here = name == "127.0.0.1" || name.eq_ignore_ascii_case("localhost");
                name_is_here && port == self.port.to_string()
            })
        };
        match hosts {
            [host] if is_here(host) => {}
            _ => return Err(Refused::Host),
        }
        let (token, rest) =
            target.strip_prefix('/').and_then(|path| path.split_once('/')).ok_or(Refused::Token)?;
        if !bool::from(token.as_bytes().ct_eq(self.token.as_bytes())) {
            return Err(Refused::Token);
        }
        if method != "GET" {
            return Err(Refused::Method);
        }
        Ok(rest)
    }
}

/// Random hexadecimal digits from the operating system.
pub(super) fn random_hex() -> Result<String, getrandom::Error> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_get_with_this_host_and_this_token_is_answered() {
        let guard = Guard { port: 8000, token: "abc".to_owned() };
        let ask = |method: &str, hosts: &[&str], target: &str| {
            guard.check(method, hosts, target).map(str::to_owned)
        };
        let here = &["127.0.0.1:8000"][..];
        assert_eq!(ask("GET", here, "/abc/"), Ok(String::new()));
        assert_eq!(ask("GET", &["localhost:8000"], "/abc/plan?a=1"), Ok("plan?a=1".to_owned()));
        for method in ["POST", "HEAD", "PUT", "DELETE", "OPTIONS"] {
            assert_eq!(ask(method, here, "/abc/"), Err(Refused::Method), "{method}");
        }
        for hosts in [
            &[][..],
            &["127.0.0.1"],
            &["127.0.0.1:8001"],
            &["evil.example:8000"],
            &["127.0.0.1.evil.example:8000"],
            &["127.0.0.1:8000", "evil.example"],
        ] {
            assert_eq!(ask("GET", hosts, "/abc/"), Err(Refused::Host), "{hosts:?}");
        }
        for target in ["/", "/abc", "abc/", "/abd/", "/ab/", "/abcd/", "//abc/", "/ABC/", ""] {
            assert_eq!(ask("GET", here, target), Err(Refused::Token), "{target}");
        }
    }

    #[test]
    fn every_start_has_another_token_of_256_bits() {
        let [one, two] = [Guard::new(1).unwrap(), Guard::new(1).unwrap()];
        assert_ne!(one.token, two.token);
        assert_eq!(one.token.len(), 64);
        assert_eq!(one.url(), format!("http://127.0.0.1:1/{}/", one.token));
    }
}
