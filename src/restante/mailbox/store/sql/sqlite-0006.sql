-- Schema 6: no index of messages by mailbox. The server knows the sequence numbers of a mailbox's messages, and deletes
-- the rows by their key. The index took a page of each commit that had messages.
DROP INDEX messages_mailbox;
