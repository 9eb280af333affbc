//! The macros of events and spans.

/// Defines the macro of one level; `$` passes the dollar sign on.
macro_rules! level {
    ($dollar:tt, $level:ident) => {
        macro_rules! $level {
            ($dollar text:literal $dollar(, $dollar name:ident = $dollar value:expr)* $dollar(,)?) => {{
                #[cfg(feature = "tracing")]
                ::tracing::$level!($dollar($dollar name = %$dollar value,)* $dollar text);
                #[cfg(not(feature = "tracing"))]
                if false {
                    $dollar(let _ = &$dollar value;)*
                }
            }};
        }
    };
}

level!($, debug);
level!($, info);
level!($, warn);
#[cfg(feature = "tracing")]
level!($, error);

/// A span inside of the present one.
///
/// Spans have the level `error`, so that an event of any level has its context whenever it is
/// recorded.
macro_rules! span {
    ($text:literal $(, $name:ident = $value:expr)* $(,)?) => {{
        #[cfg(feature = "tracing")]
        let span = $crate::log::Span::new(::tracing::error_span!($text $(, $name = %$value)*));
        #[cfg(not(feature = "tracing"))]
        let span = {
            if false {
                $(let _ = &$value;)*
            }
            $crate::log::Span::none()
        };
        span
    }};
}

/// A span without a parent, for what outlives the call that makes it.
macro_rules! root_span {
    ($text:literal $(, $name:ident = $value:expr)* $(,)?) => {{
        #[cfg(feature = "tracing")]
        let span = $crate::log::Span::new(
            ::tracing::error_span!(parent: None, $text $(, $name = %$value)*),
        );
        #[cfg(not(feature = "tracing"))]
        let span = {
            if false {
                $(let _ = &$value;)*
            }
            $crate::log::Span::none()
        };
        span
    }};
}
