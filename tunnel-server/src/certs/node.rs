//! Certificates by which server nodes know each other, of a CA that is for nothing else.
//!
//! In: the name of a node, and the CA if there is one. Out: PEM text in memory.

use rcgen::{ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType, string::Ia5String};
use tunnel_directory::NodeName;

use super::{CertsError, authority, leaf};
use crate::peer_tls::node_uri;

/// The common name of the CA of nodes.
const NODE_CA_NAME: &str = "tunnel node CA";

/// The CA of nodes.
pub struct NodeAuthority {
    /// Its certificate, PEM.
    pub pem: String,
    /// Its key, PKCS#8.
    pub key: String,
    issuer: Issuer<'static, KeyPair>,
}

impl NodeAuthority {
    /// Makes a CA that is valid for `days` days.
    ///
    /// # Errors
    /// When the library fails.
    pub fn generate(days: u32) -> Result<Self, CertsError> {
        let pair = KeyPair::generate()?;
        let params = authority(NODE_CA_NAME, days)?;
        let pem = params.self_signed(&pair)?.pem();
        Ok(Self::of(pem, pair, params))
    }

    /// A CA that was made before.
    ///
    /// # Errors
    /// When its key is not usable.
    pub fn load(pem: &str, key: &str, days: u32) -> Result<Self, CertsError> {
        let pair = KeyPair::from_pem(key).map_err(|_| CertsError::BadKey("peer-ca.key"))?;
        let params = authority(NODE_CA_NAME, days)?;
        Ok(Self::of(pem.to_owned(), pair, params))
    }

    fn of(pem: String, pair: KeyPair, params: rcgen::CertificateParams) -> Self {
        Self {
            pem,
            key: pair.serialize_pem(),
            issuer: Issuer::new(params, pair),
        }
    }

    /// The certificate of a node and its key, both PEM.
    ///
    /// # Errors
    /// When the library fails.
    pub fn issue(&self, node: &NodeName, days: u32) -> Result<(String, String), CertsError> {
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        let mut params = leaf(&[], node.as_str(), days, usage)?;
        // Each node dials the others, and is dialled.
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ClientAuth);
        let uri = Ia5String::try_from(node_uri(node))?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        let key = KeyPair::generate()?;
        let pem = params.signed_by(&key, &self.issuer)?.pem();
        Ok((pem, key.serialize_pem()))
    }
}

impl std::fmt::Debug for NodeAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeAuthority").finish_non_exhaustive()
    }
}
