"""The web page over runs: reads run directories, and steers by the commands that `drivetrain control` gives."""
