//! TLS with rustls: which certificates of servers are accepted.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::settings::{Mode, Settings};
use crate::error::StoreError;

/// TLS as the settings ask for it.
pub(super) fn connector(settings: &Settings) -> Result<MakeRustlsConnect, StoreError> {
    let provider = Arc::new(ring::default_provider());
    let failed = |error: &dyn std::fmt::Display| StoreError::Server(format!("TLS: {error}"));
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?;
    // As with other clients, a root certificate that is named is used.
    let mode = match settings.mode {
        Mode::Require if settings.root.is_some() => Mode::VerifyCa,
        mode => mode,
    };
    let config = match mode {
        Mode::VerifyFull => builder.with_root_certificates(roots(settings)?),
        Mode::VerifyCa => {
            let known = Arc::new(roots(settings)?);
            let full = WebPkiServerVerifier::builder_with_provider(known, provider).build();
            let verifier = AnyHost(full.map_err(|error| failed(&error))?);
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
        Mode::Disable | Mode::Prefer | Mode::Require => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        }
    };
    Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
}

/// The certificates that sign trusted ones: those of the file, or of the system.
fn roots(settings: &Settings) -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    let Some(file) = settings.root.as_ref().filter(|root| root.as_os_str() != "system") else {
        let system = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(system.certs);
        return Ok(roots);
    };
    let refused =
        |why: String| StoreError::Refused(format!("sslrootcert {}: {why}", file.display()));
    let certificates =
        CertificateDer::pem_file_iter(file).map_err(|error| refused(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| refused(error.to_string()))?;
        roots.add(certificate).map_err(|error| refused(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(refused("has no certificate".to_owned()));
    }
    Ok(roots)
}

/// Verifies who signed a certificate, and not for which host it is (`verify-ca`).
#[derive(Debug)]
struct AnyHost(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Accepts every certificate, as `sslmode=require` and `prefer` ask for: whoever can change what the network carries can
/// pretend to be the server.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
