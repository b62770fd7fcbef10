"""The client SDK: a guest or a proxy, asynchronous or not, behind one exception tree."""
