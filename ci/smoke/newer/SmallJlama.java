import dev.kvasir.jlama.trial.SmallModel;
import java.nio.file.Path;

/** The example of a session of Jlama, with a model that is written for it. The argument is a folder to make. */
public final class SmallJlama {
  public static void main(String[] args) throws Exception {
    JlamaSession.main(new String[] {SmallModel.write(Path.of(args[0])).toString()});
  }
}
