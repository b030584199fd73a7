package dev.kvasir.error;

import org.jspecify.annotations.Nullable;

/** A saved sequence, or a block of one, that is not what it should be. Whoever wanted to restore it is as before. */
public final class KvFileException extends KvException {

  private static final long serialVersionUID = 1L;

  /** What is wrong with the bytes. */
  public enum Reason {
    /** Nothing that this library saved. */
    FOREIGN(1),
    /** Saved by a version that this one does not know. */
    VERSION(2),
    /** The bytes end too early. */
    TRUNCATED(3),
    /** A checksum is not that of the bytes: they are damaged. */
    CHECKSUM(4),
    /** Saved by a cache of another kind, or for another model; the message names what differs. */
    MISMATCH(5),
    /** Checksums are right, and what they protect makes no sense. */
    INVALID(6),
    /** Blocks, or what goes with them, are missing. */
    INCOMPLETE(7),
    /** Blocks that do not follow each other, or are not those of the sequence. */
    ORDER(8),
    /** The caller wanted no more of it. */
    CANCELLED(9);

    private final int code;

    Reason(int code) {
      this.code = code;
    }

    /**
     * The number that native code knows it by, for good.
     *
     * @return the code
     */
    public int code() {
      return code;
    }
  }

  /** What is wrong. */
  private final Reason reason;

  /**
   * Makes an exception.
   *
   * @param reason what is wrong
   * @param message where, with the offending values
   * @param cause what led to it, or null
   */
  public KvFileException(Reason reason, String message, @Nullable Throwable cause) {
    super(Code.BAD_FILE, message, cause);
    this.reason = reason;
  }

  /**
   * What is wrong.
   *
   * @return the reason
   */
  public Reason reason() {
    return reason;
  }
}
