//! A server with a part of Redis' protocol (RESP), in place of a Redis server.

use smc::tokio::{TcpListener, TcpStream};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};

use crate::Result;

/// Answers the command GET with the mode of the stream, and any other with OK.
///
/// # Errors
///
/// When the listener accepts no more.
pub async fn serve(listener: TcpListener) -> Result {
    loop {
        let (stream, _peer) = listener.accept().await?;
        // A client that breaks the protocol, or breaks off, loses its connection.
        tokio::spawn(answer(stream));
    }
}

async fn answer(stream: TcpStream) -> Result {
    let mode = stream.mode().to_string();
    let mut stream = BufStream::new(stream);
    while let Some(command) = command(&mut stream).await? {
        let answer = match command.as_str() {
            "GET" => format!("${}\r\n{mode}\r\n", mode.len()),
            _ => "+OK\r\n".to_owned(),
        };
        stream.write_all(answer.as_bytes()).await?;
        stream.flush().await?;
    }
    Ok(())
}

/// The first word of an array of texts, `*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n`; `None` at the end.
async fn command(stream: &mut BufStream<TcpStream>) -> Result<Option<String>> {
    let mut words = Vec::new();
    let Some(count) = number(stream, '*').await? else {
        return Ok(None);
    };
    for _ in 0..count {
        let len = number(stream, '$').await?.ok_or("no end of a command")?;
        let mut word = vec![0; len + 2];
        stream.read_exact(&mut word).await?;
        word.truncate(len);
        words.push(String::from_utf8(word)?.to_uppercase());
    }
    Ok(words.into_iter().next())
}

/// A number of at most three digits behind this mark.
async fn number(stream: &mut BufStream<TcpStream>, mark: char) -> Result<Option<usize>> {
    let mut line = String::new();
    if stream.take(6).read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let number = line.trim_end().strip_prefix(mark).ok_or("not RESP")?;
    Ok(Some(number.parse()?))
}
