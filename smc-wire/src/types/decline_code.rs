//! Diagnosis codes of DECLINE: their values and names.
//!
//! The causes for which this library sends a code are in
//! `smc-core/src/proto/handshake/decline.rs`. Codes that only peers send are named here too.

use core::fmt;

use crate::codes::named_code;

/// Why a peer declined SMC (32 bits, docs/spec/fallback.md#codes; RFC 7609 appendix A.2).
///
/// The values are each implementation's own; the named ones are those of Linux. Unknown values are
/// informational and print as hex.
///
/// ```
/// use smc_wire::types::DeclineCode;
///
/// assert_eq!(DeclineCode::NOSMCDEV.to_string(), "0x03030000 (NOSMCDEV)");
/// assert_eq!(DeclineCode(0x1234).to_string(), "0x00001234");
/// assert_eq!(format!("{:?}", DeclineCode::NOSMCDEV), "DeclineCode(0x03030000 (NOSMCDEV))");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeclineCode(pub u32);

macro_rules! decline_codes {
    ($($value:literal $name:ident $sentence:literal;)+) => {
        impl DeclineCode {
            $(
                #[doc = $sentence]
                #[doc = ""]
                #[doc = concat!("Value ", stringify!($value), ".")]
                pub const $name: Self = Self($value);
            )+

            /// All codes that have a name, in numerical order.
            pub const KNOWN: &[Self] = &[$(Self::$name),+];

            /// The name, for example `NOSMCDEV`, or `None` for unknown values.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)+
                    _ => None,
                }
            }

            /// One sentence as text, or `None` for unknown values.
            #[must_use]
            pub const fn description(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($sentence),)+
                    _ => None,
                }
            }
        }
    };
}

decline_codes! {
    0x0101_0000 MEM "Memory for a message or a buffer could not be had.";
    0x0200_0000 TIMEOUT_OLD "A wait timed out (value of older Linux kernels).";
    0x0201_0000 TIMEOUT_CL "The CONFIRM LINK exchange of the first link timed out or failed.";
    0x0202_0000 TIMEOUT_AL "The ADD LINK exchange timed out.";
    0x0204_0000 TIMEOUT_OLD_4 "A wait timed out (another value of older Linux kernels).";
    0x0300_0000 CNFERR "The client's IP prefixes could not be determined and no v2 type is left.";
    0x0301_0000 PEERNOSMC "The PROPOSAL offers nothing, or the peer does not support SMC.";
    0x0302_0000 IPSEC "An IPsec policy applies to the connection.";
    0x0303_0000 NOSMCDEV "There is no device that could serve the connection.";
    0x0303_0001 NOSMCDDEV "Only SMC-D is offered and no device or EID matches.";
    0x0303_0002 NOSMCRDEV "No RDMA device was found for SMC-R.";
    0x0303_0003 NOISM2SUPP "Only SMC-D v2 is left and there is no SMC-D device capable of v2.";
    0x0303_0004 NOV2EXT "The v2 extension of the PROPOSAL is missing.";
    0x0303_0005 NOV2DEXT "The SMC-D v2 extension of the PROPOSAL is missing or misplaced.";
    0x0303_0006 NOSEID "The SEID is missing.";
    0x0303_0007 NOSMCD2DEV "No SMC-D device has an offered CHID and reaches the offered GID.";
    0x0303_0008 NOUEID "The PROPOSAL carries no EID that the offered type could use.";
    0x0303_0009 RELEASEERR "CONFIRM states another release or other features than ACCEPT.";
    0x0303_000A MAXCONNERR "The number of connections per link group is too small or was changed.";
    0x0303_000B MAXLINKERR "The number of links per link group is out of range or was changed.";
    0x0304_0000 MODEUNSUPP "The server chose a type or version that was not offered.";
    0x0305_0000 RMBE_EC "The peer did not announce that its buffers carry no eyecatcher.";
    0x0306_0000 OPTUNSUPP "A socket option in use is not supported with SMC.";
    0x0307_0000 DIFFPREFIX "Client and server are not in the same IP subnet.";
    0x0308_0000 GETVLANERR "The VLAN of the connection could not be determined.";
    0x0309_0000 ISMVLANERR "The VLAN could not be registered with the ISM device.";
    0x030A_0000 NOACTLINK "The reused link group has no active link.";
    0x030B_0000 NOSRVLINK "The link chosen by the server is unknown in the link group.";
    0x030C_0000 VERSMISMAT "Client and server found different versions.";
    0x030D_0000 MAX_DMB "The device cannot register more buffers.";
    0x030E_0000 NOROUTE "There is no route to the server's RoCEv2 address.";
    0x030F_0000 NOINDIRECT "The server needs a gateway where the client has a direct route.";
    0x0400_0000 SYNCERR "The server reused a link group that the client does not have.";
    0x0500_0000 PEERDECL "The peer declined; a local reason that is never on the wire.";
    0x0600_0000 OLD_6 "Value of older Linux kernels; the cause is not recorded.";
    0x0700_0000 OLD_7 "Value of older Linux kernels; the cause is not recorded.";
    0x0800_0000 OLD_8 "Value of older Linux kernels; the cause is not recorded.";
    0x0999_0000 INTERR "Creating the link group failed inside the peer.";
    0x0999_0001 ERR_RTOK "The peer's rkey could not be stored.";
    0x0999_0002 ERR_RDYLNK "The queue pair could not be brought up.";
    0x0999_0003 ERR_REGBUF "Registering the buffer, or announcing its rkey, failed.";
    0x9999_0000 INTERR_OLD "Creating the link group failed (value of older Linux kernels).";
    0x9999_0001 ERR_RTOK_OLD "The rkey could not be stored (value of older Linux kernels).";
    0x9999_0002 ERR_RDYLNK_OLD "The queue pair could not be brought up (older Linux kernels).";
    0x9999_0003 ERR_REGBUF_OLD "Registering the buffer failed (value of older Linux kernels).";
}

impl fmt::Display for DeclineCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        named_code(f, self.0, self.name())
    }
}

impl fmt::Debug for DeclineCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeclineCode({self})")
    }
}
